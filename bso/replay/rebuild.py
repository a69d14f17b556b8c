"""Making a job's tables agree with its log: in place, or in the database that the log is brought to."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from pydantic_core import from_json
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from bso.domain.decide import Rules
from bso.domain.trial import TrialState
from bso.replay.differences import precedes_log, profile_precedes_log, profiles_of, row_differences, trials_of
from bso.replay.expected_rows import ExpectedRows, expected_rows
from bso.replay.fold import Folding, LogBroken, LogPages, pages_of
from bso.schema.codec import require_known_major
from bso.service.errors import Conflict, StoreLost
from bso.service.ports import ParkedJobs
from bso.service.serialization import recorded_from
from bso.storage.job_logs import JobRows, LockedJob, RowChanges
from bso.storage.rows import Row

_ATTEMPTS = 5


class Rebuildable(LogPages, Protocol):
    """A store whose jobs can be locked and written."""

    @property
    def parked_jobs(self) -> ParkedJobs:
        """The jobs whose commands cannot be decided for now."""
        ...

    def locked_job(self, job_id: str) -> AbstractAsyncContextManager[LockedJob]:
        """Lock a job until the end of the block; what was not committed is undone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What was done to a job: events added to its log, rows written or deleted.

    ``trials_before_log`` counts the trials that had ended before the log begins: they are as they were, or missing.
    """

    job_id: str
    events: int
    trials: int
    added_events: int
    changed_rows: int
    trials_before_log: int


_again = retry(
    retry=retry_if_exception_type((Conflict, StoreLost)),
    stop=stop_after_attempt(_ATTEMPTS),
    wait=wait_random_exponential(multiplier=0.05, max=1.0),
    reraise=True,
)


@_again
async def rebuild(store: Rebuildable, job_id: str, *, rules: Rules) -> Rebuilt:
    """Write what differs between a job's tables and its log, in one transaction that holds the job's lock.

    Rows that the log should have, and does not have, are deleted. Active trials keep their leases; one without gets
    a new one by ``rules``. A parked job is parked no more. Raises LogBroken, and StateTooNew where a newer release has
    written the row of the job, and changes nothing then.
    """
    folding = Folding(job_id)
    await _fold(folding, store)  # most of the log, before others have to wait
    async with store.locked_job(job_id) as locked:
        rebuilt = await _rebuilt(locked, folding, rules, added=0)
    await store.parked_jobs.recover([job_id])
    return rebuilt


@_again
async def bring(log: LogPages, store: Rebuildable, job_id: str, *, rules: Rules) -> Rebuilt:
    """Add what a store's log of a job lacks, and rebuild the job's tables, in one transaction.

    Doing so again changes nothing. Added events count as published: they are not published again. Raises LogConflict
    where the store's log holds something else, and LogBroken; nothing of the job was changed then.
    """
    async with store.locked_job(job_id) as locked:
        added = 0
        async for page in pages_of(log, job_id):
            added += await locked.append(page)
        rebuilt = await _rebuilt(locked, Folding(job_id), rules, added=added)
    await store.parked_jobs.recover([job_id])
    return rebuilt


async def _fold(folding: Folding, log: LogPages) -> None:
    async for page in pages_of(log, folding.job.job_id, after_seq=folding.last_seq):
        for logged in page:
            folding.add(recorded_from(logged))


async def _rebuilt(locked: LockedJob, folding: Folding, rules: Rules, *, added: int) -> Rebuilt:
    job_id = folding.job.job_id
    await _fold(folding, locked)
    if not folding.events:
        raise LogBroken(f"the log holds no event of job {job_id}: there is nothing to rebuild its tables from")
    folding.require_whole()
    expected, rows = expected_rows(folding), await locked.rows()
    _require_no_newer(job_id, rows)
    changes = _changes(folding, expected, rows, locked.now, rules)
    if added or changes.count:
        await locked.write(changes)
        await locked.commit()
    return Rebuilt(
        job_id=job_id,
        events=folding.events,
        trials=len(expected.trials),
        added_events=added,
        changed_rows=changes.count,
        trials_before_log=max(0, folding.trials_before - sum(one <= folding.trials_before for one in expected.trials)),
    )


def _require_no_newer(job_id: str, rows: JobRows) -> None:
    """Raise StateTooNew where a newer release has written the row: rebuilding would put this release's in its place.

    A damaged row prevents nothing.
    """
    with suppress(ValueError, TypeError):
        state = from_json(rows.job["state"]) if rows.job is not None else None
        if isinstance(state, dict):
            require_known_major(job_id, state)


def _changes(folding: Folding, expected: ExpectedRows, rows: JobRows, now: datetime, rules: Rules) -> RowChanges:
    trials, profiles = trials_of(rows), profiles_of(rows)
    leased = {
        number: {**row, "lease_expires_at": _lease(row, trials.get(number), now, rules)}
        for number, row in expected.trials.items()
    }
    return RowChanges(
        job=_changed_job(expected.job, rows.job),
        trials=[row for number, row in leased.items() if _is_changed("trial", row, trials.get(number))],
        power_profiles=[
            row for key, row in expected.power_profiles.items() if _is_changed("power_profile", row, profiles.get(key))
        ],
        gone_trials=[
            key for key, row in sorted(trials.items()) if key not in expected.trials and not precedes_log(folding, row)
        ],
        gone_power_profiles=[
            key
            for key, row in profiles.items()
            if key not in expected.power_profiles and not profile_precedes_log(folding, row)
        ],
    )


def _changed_job(expected: Row, found: Row | None) -> Row | None:
    if not _is_changed("job", expected, found):
        return None
    known = [expected["created_at"], None if found is None else found["created_at"], expected["changed_at"]]
    return {**expected, "created_at": next(moment for moment in known if isinstance(moment, datetime))}


def _is_changed(table: str, expected: Row, found: Row | None) -> bool:
    if found is None or any(row_differences(table, {}, expected, found)):
        return True
    return table == "trial" and found["lease_expires_at"] != expected["lease_expires_at"]


def _lease(row: Row, found: Row | None, now: datetime, rules: Rules) -> Any:
    """When a trial's lease ends: where none is known, as if it had reported just now."""
    if row["state"] == TrialState.ENDED.value:
        return None
    known = None if found is None or found["state"] != row["state"] else found["lease_expires_at"]
    if isinstance(known, datetime):
        return known
    is_running = row["state"] == TrialState.RUNNING.value
    return now + timedelta(seconds=max(rules.lease_s, row["silence_s"] or 0.0) if is_running else rules.resume_window_s)
