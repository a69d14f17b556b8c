"""Keeping a store small: pruning old history, purging deleted jobs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from bso.domain.errors import Rejected
from bso.domain.events import JobSnapshotted
from bso.domain.policies import PolicyMissing
from bso.schema.errors import StateTooNew
from bso.service.errors import JobDamaged
from bso.service.ports import Store, UnitOfWork
from bso.service.records import ChangeSet, JobChange, StoredEvent, TrialKey
from bso.service.serialization import read_snapshot, recorded_after, row_without_reply, snapshot_event

_PAGE = 1000

Export = Callable[[Sequence[StoredEvent]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What pruning has removed."""

    jobs: int
    events: int
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Jobs whose events cannot be read, and why: all of theirs stay."""


async def prune_events(store: Store, *, before: datetime, export: Export) -> Pruned:
    """Hand all events recorded before a moment to ``export``, then delete them, job by job.

    Every pruned job gets a job_snapshotted event, from which replay starts. Events that were not published yet stay.
    A command that was decided before that moment is no longer recognised when it is sent again. What was exported
    before an error is not lost, and is exported again by the next call. A job that cannot be read harms no other one.
    """
    jobs = events = 0
    unreadable: dict[str, str] = {}
    for summary in await store.jobs():
        try:
            removed = await _prune_job(store, summary.job_id, before, export)
        except (JobDamaged, PolicyMissing, Rejected, StateTooNew) as error:
            unreadable[summary.job_id] = str(error)
            continue
        jobs += removed > 0
        events += removed
    return Pruned(jobs=jobs, events=events, unreadable=unreadable)


async def purge_jobs(store: Store, *, deleted_before: datetime) -> tuple[str, ...]:
    """Delete all traces of jobs that were deleted before a moment and not touched since; returns their ids.

    Their sequence and trial numbers start anew if such an id is ever registered again.
    """
    old = [job.job_id for job in await store.jobs() if job.is_deleted and job.changed_at < deleted_before]
    return tuple([job_id for job_id in old if await _purge(store, job_id)])


async def _prune_job(store: Store, job_id: str, before: datetime, export: Export) -> int:
    last: StoredEvent | None = None
    count = 0
    while page := await store.history(job_id, after=last.event_id if last else 0, before=before, limit=_PAGE):
        if not count and len(page) == 1 and isinstance(page[0].recorded.event, JobSnapshotted):
            return 0
        export(page)
        last = page[-1]
        count += len(page)
    if last is None:
        return 0
    given_up = {(job_id, trial.trial_number) for trial in await store.trials(job_id) if trial.may_report_late}
    async with store.unit_of_work() as uow:
        return await _replace_by_snapshot(uow, job_id, last.recorded.seq, before, given_up)


async def _replace_by_snapshot(
    uow: UnitOfWork, job_id: str, up_to_seq: int, before: datetime, given_up: Collection[TrialKey]
) -> int:
    stored = (await uow.lock([job_id], creating=())).get(job_id)
    if stored is None:
        return 0
    # Clocks step back: an event may have a lower seq than one that was exported, and a later moment than the bound.
    removed = await uow.forget_events(job_id, up_to_seq=up_to_seq, before=before)
    if not removed:
        return 0
    seq = stored.last_seq + 1
    memory = await uow.recollect((), active_of=[job_id])
    job = read_snapshot(stored)
    wanted = {*given_up, *((job_id, number) for number in job.unacknowledged_stops)}
    trials = {**(await uow.trials(wanted) if wanted else {}), **memory.active}
    for trial in trials.values():
        if job.awaits_result(trial):
            job = job.with_trial(trial)
    command_id = str(uuid.uuid4())  # noqa: TID251 - nobody can know it before, nor keep the job from being pruned
    [recorded] = recorded_after(
        stored.last_seq, [snapshot_event(job)], job_id=job_id, command_id=command_id, memory=memory
    )
    change = JobChange(job_id=job_id, last_seq=seq, revision=stored.revision + 1)
    await uow.commit(ChangeSet(now=memory.now, events=(row_without_reply(recorded),), jobs=(change,)))
    return removed


async def _purge(store: Store, job_id: str) -> bool:
    async with store.unit_of_work() as uow:
        stored = (await uow.lock([job_id], creating=())).get(job_id)
        if stored is None or not read_snapshot(stored).is_deleted:
            return False
        await uow.forget_job(job_id)
        await uow.commit()
        return True
