"""The rows that a folded log makes of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bso.domain.job import Job
from bso.replay.fold import Folding, LogBroken
from bso.service.errors import Unstorable
from bso.service.serialization import snapshot_of
from bso.storage.rows import Row, profile_row, trial_row


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRows:
    """A job's rows by its log. Leases are no part of history: those of trials are empty here."""

    job: Row
    trials: Mapping[int, Row]
    power_profiles: Mapping[tuple[int, str], Row]


def expected_rows(folding: Folding) -> ExpectedRows:
    """The rows of a job whose log was folded to its end. Raises LogBroken where no table could hold them."""
    job_id = folding.job.job_id
    try:
        return ExpectedRows(
            job=_job_row(folding),
            trials={number: trial_row(job_id, trial) for number, trial in sorted(folding.trials.items())},
            power_profiles={
                key: {**profile_row(kept.profile), "recorded_at": kept.recorded_at}
                for key, kept in sorted(folding.profiles.items())
            },
        )
    except Unstorable as error:
        raise LogBroken(f"the log of job {job_id} has a value that no table can hold: {error}") from error


def _job_row(folding: Folding) -> Row:
    job: Job = folding.job
    snapshot = snapshot_of(job)
    return {
        "job_id": job.job_id,
        "last_seq": folding.last_seq,
        "owner": snapshot.owner or "",
        "granted_to": snapshot.granted_to,
        "is_deleted": snapshot.is_deleted,
        "version_number": snapshot.version_number,
        "version": snapshot.version,
        "policy": snapshot.policy,
        "last_trial_number": snapshot.last_trial_number,
        "spec": snapshot.spec,
        "state": snapshot.state,
        "created_at": folding.created_at,
        "changed_at": folding.changed_at,
    }
