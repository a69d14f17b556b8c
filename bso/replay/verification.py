"""Checking that the tables of a job agree with its log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bso.domain.errors import Rejected
from bso.domain.policies import PolicyMissing
from bso.replay.differences import (
    Difference,
    differences,
    precedes_log,
    profile_precedes_log,
    profiles_of,
    snapshot_differences,
    trials_of,
)
from bso.replay.expected_rows import expected_rows
from bso.replay.fold import Folding, LogPages, pages_of
from bso.schema.errors import StateTooNew
from bso.service.records import LoggedEvent
from bso.service.serialization import recorded_from, row_without_reply
from bso.storage.job_logs import JobRows, UnreadableRow

_TRIES = 5


class Tables(Protocol):
    """Where a job's rows are read from, all of one moment."""

    async def job_rows(self, job_id: str) -> JobRows:
        """What the tables hold of a job."""
        ...


class SourceOfBoth(LogPages, Tables, Protocol):
    """A store that holds log and tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCheck:
    """What came of a job's check. ``problem`` says why its log cannot be folded, if so.

    ``is_checked`` is False where its policy is not installed here, without which nothing can be said of the log.
    ``trials_before_log`` and ``profiles_before_log`` count rows that are older than the log, and so cannot be checked.
    """

    job_id: str
    events: int
    trials: int
    problem: str | None = None
    differences: Sequence[Difference] = ()
    trials_before_log: int = 0
    profiles_before_log: int = 0
    is_checked: bool = True

    @property
    def is_sound(self) -> bool:
        """Whether it was checked, and nothing is wrong."""
        return self.problem is None and not self.differences


async def verify(store: SourceOfBoth, job_id: str) -> JobCheck:
    """Compare a job's tables with its log, both of one store, at one moment; the job may be in use meanwhile."""
    try:
        return await _verified(store, job_id)
    except UnreadableRow as error:
        return _broken(Folding(job_id), error)


async def _verified(store: SourceOfBoth, job_id: str) -> JobCheck:
    rows = await store.job_rows(job_id)
    for _ in range(_TRIES):
        verdict = await _compared(store, rows, job_id, up_to=rows.last_logged_seq)
        if verdict.is_sound:
            return verdict
        before, rows = rows, await store.job_rows(job_id)
        if rows.last_logged_seq == before.last_logged_seq:
            return verdict
        # Something was recorded meanwhile: it may have been the log's pruning, which takes events away.
    return await _compared(store, rows, job_id, up_to=rows.last_logged_seq)


async def verify_against(log: LogPages, tables: Tables, job_id: str) -> JobCheck:
    """Compare a job's tables with a log from elsewhere, of which the tables may be ahead."""
    try:
        rows = await tables.job_rows(job_id)
    except UnreadableRow as error:
        return _broken(Folding(job_id), error)
    verdict = await _compared(log, rows, job_id, up_to=None)
    ahead = next((one for one in verdict.differences if (one.table, one.column) == ("job", "last_seq")), None)
    if ahead is not None and ahead.log < ahead.found:  # all else follows from it
        return replace(verdict, differences=(ahead,))
    return verdict


async def verify_log(log: LogPages, job_id: str) -> JobCheck:
    """Check that a log can be folded from its beginning, or a snapshot, to its end; compare with no table."""
    return await _compared(log, None, job_id, up_to=None)


async def _compared(log: LogPages, rows: JobRows | None, job_id: str, *, up_to: int | None) -> JobCheck:
    """Fold a log, and compare it with rows, if there are any to compare it with."""
    folding = Folding(job_id)
    try:
        found = await _fold(folding, log, up_to=up_to)
        if not folding.events:
            return JobCheck(job_id=job_id, events=0, trials=0, problem=_without_log(rows))
        folding.require_whole()
        expected = expected_rows(folding)
    except (PolicyMissing, Rejected, StateTooNew) as error:
        return _broken(folding, error)
    trials, profiles = ({}, {}) if rows is None else (trials_of(rows), profiles_of(rows))
    older = [key for key, row in trials.items() if key not in expected.trials and precedes_log(folding, row)]
    older_profiles = [
        key
        for key, row in profiles.items()
        if key not in expected.power_profiles and profile_precedes_log(folding, row)
    ]
    compared = snapshot_differences(folding) if rows is None else differences(folding, expected, rows)
    return JobCheck(
        job_id=job_id,
        events=folding.events,
        trials=len(expected.trials),
        differences=(*found, *compared),
        trials_before_log=len(older),
        profiles_before_log=len(older_profiles),
    )


async def _fold(folding: Folding, log: LogPages, *, up_to: int | None) -> list[Difference]:
    """Fold a log up to a seq; the differences between its payloads and the columns beside them."""
    found: list[Difference] = []
    async for page in pages_of(log, folding.job.job_id):
        for logged in page:
            if up_to is not None and logged.new.seq > up_to:
                return found
            recorded = recorded_from(logged)
            folding.add(recorded)
            found += _beside_payload(logged, row_without_reply(recorded))
    return found


def _beside_payload(logged: LoggedEvent, expected: object) -> list[Difference]:
    return [
        Difference(
            table="event",
            row={"seq": logged.new.seq},
            column=column,
            log=getattr(expected, column),
            found=getattr(logged.new, column),
        )
        for column in ("trial_number", "epoch")
        if getattr(expected, column) != getattr(logged.new, column)
    ]


def _without_log(rows: JobRows | None) -> str:
    if rows is None:
        return "the log holds no event of it"
    if rows.job is None and not rows.trials and not rows.power_profiles:
        return "neither the log nor the tables hold anything of it"
    held = [f"{len(rows.trials)} trials", f"{len(rows.power_profiles)} power profiles"]
    held = ["a job", *held] if rows.job is not None else held
    return f"the log holds no event of it, the tables {', '.join(held)}"


def _broken(folding: Folding, error: Exception) -> JobCheck:
    return JobCheck(
        job_id=folding.job.job_id,
        events=folding.events,
        trials=len(folding.trials),
        problem=str(error),
        is_checked=not isinstance(error, PolicyMissing),
    )
