"""What a batch reads: its jobs, locked, and what deciding its commands needs beside them, all asked for once."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass

from bso.domain.commands import DeleteJob, PowerMeasurement, RegisterJob, Request
from bso.domain.decide import Known, Needs, PowerProfiles, ReportKey, Rules, needs
from bso.domain.errors import Rejected, Retryable
from bso.domain.frozen_values import replace
from bso.domain.job import Job
from bso.domain.trial import EpochReport, Trial
from bso.schema.errors import StateTooNew
from bso.service.errors import JobDamaged, JobHeld
from bso.service.log_epochs import LogWatch
from bso.service.ports import UnitOfWork
from bso.service.records import Recollection, StoredJob, TrialKey, TriedLocks
from bso.service.serialization import KnownJob, KnownJobs

_Asked = Sequence[tuple[str, Needs]]
"""What commands need, each beside the id of its job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSet:
    """What the store held when the jobs were locked, or what it is assumed to hold.

    ``was_current``: nobody else holds a job that was kept, or has changed it; None where none was. ``jobs`` have their
    active trials, ``trials`` are all that were loaded, ``known`` is what else deciding needs; ``revisions`` and
    ``texts``, of their snapshots, are those of the jobs. Nothing can be decided on the jobs in ``unusable``.
    ``read_at_s``: when the store's clock was read, by the event loop's.
    """

    memory: Recollection
    read_at_s: float
    was_current: bool | None
    unusable: Mapping[str, Retryable]
    jobs: Mapping[str, Job]
    revisions: Mapping[str, int]
    texts: Mapping[str, str]
    trials: Mapping[TrialKey, Trial]
    known: Known


async def read_set(
    uow: UnitOfWork,
    requests: Sequence[Request],
    *,
    rules: Rules,
    known_jobs: KnownJobs,
    waits: bool,
    watch: LogWatch | None,
) -> ReadSet:
    """Lock the jobs of these requests and read what they need. Raises LogOutdated.

    ``waits``: for jobs that another transaction holds; else they are unusable.
    """
    since = None if watch is None else watch.seen
    job_ids = sorted({request.job_id for request in requests})
    kept = remembered = known_jobs.of(job_ids)
    if waits and len(job_ids) > 1:  # in the order of their ids, each state is read: no two wait for one another
        kept = {job_id: replace(known, revision=None) for job_id, known in kept.items()}
        locked, memory = await _locked_in_order(uow, requests)
    else:
        locked, memory = await _locked(uow, requests, kept=kept, waits=waits)
    read_at_s = asyncio.get_running_loop().time()
    if watch is not None:
        watch.check(memory.log_epoch, since=since)
    jobs, unusable = _readable(locked, known_jobs, kept)
    unusable |= await _orphans(uow, requests, found=locked.jobs.keys() | locked.busy.keys())
    jobs = _with_trials(jobs, memory.active)
    usable = [request for request in requests if request.job_id not in unusable]
    new = [request for request in usable if request.command_id not in memory.replies]
    known = await _known(uow, new, jobs, rules=rules, known_jobs=known_jobs, locked=locked.jobs.keys())
    loaded = {(job_id, number): trial for job_id, job in jobs.items() for number, trial in job.trials.items()}
    return ReadSet(
        memory=memory,
        read_at_s=read_at_s,
        was_current=_were_current(locked, remembered.values()),
        unusable=unusable,
        jobs=jobs,
        revisions={job_id: locked.jobs[job_id].revision for job_id in jobs},
        texts={job_id: locked.jobs[job_id].state or kept[job_id].text for job_id in jobs},
        trials={**loaded, **known.trials},
        known=known,
    )


async def _locked_in_order(uow: UnitOfWork, requests: Sequence[Request]) -> tuple[TriedLocks, Recollection]:
    jobs = await uow.lock({request.job_id for request in requests}, creating=_registering(requests))
    memory = await uow.recollect({request.command_id for request in requests}, active_of=jobs.keys())
    return TriedLocks(jobs=jobs), memory


async def _locked(
    uow: UnitOfWork, requests: Sequence[Request], *, kept: Mapping[str, KnownJob], waits: bool
) -> tuple[TriedLocks, Recollection]:
    """The jobs, locked, and what the store remembers, with the active trials of those that are not current.

    ``waits``: for the job, which is the only one, if another transaction holds it.
    """
    job_ids, creating = sorted({request.job_id for request in requests}), _registering(requests)
    command_ids = {request.command_id for request in requests}
    known = {job_id: one.revision for job_id, one in kept.items() if one.revision is not None}
    locked = await uow.try_lock(job_ids, creating=creating, command_ids=command_ids, known=known)
    if waits and locked.busy:
        return await _locked_in_order(uow, requests)
    read = {job_id for job_id, stored in locked.jobs.items() if not _is_unread(stored, kept)}
    memory = locked.memory or await uow.recollect(command_ids, active_of=read)
    return await _with_outdated(uow, locked, memory, kept=kept)


async def _with_outdated(
    uow: UnitOfWork, locked: TriedLocks, memory: Recollection, *, kept: Mapping[str, KnownJob]
) -> tuple[TriedLocks, Recollection]:
    """The same with the states and the active trials of the jobs that have the revision, but not the log, they had."""
    unread = [stored for stored in locked.jobs.values() if _is_unread(stored, kept)]
    outdated = [one.job_id for one in unread if not kept[one.job_id].is_current(one, memory.log_epoch)]
    if outdated:
        locked = replace(locked, jobs={**locked.jobs, **await uow.lock(outdated, creating=())})
        more = await uow.recollect((), active_of=outdated)
        memory = replace(memory, active={**memory.active, **more.active})
    return locked, memory


def _is_unread(stored: StoredJob, kept: Mapping[str, KnownJob]) -> bool:
    """Whether a job came without its state, as it is in the revision that is kept."""
    return not stored.state and stored.job_id in kept and kept[stored.job_id].revision == stored.revision


def _were_current(locked: TriedLocks, kept: Iterable[KnownJob]) -> bool | None:
    """Whether all jobs that were kept are free, and in the revisions in which they were; None: none was kept."""
    revisions = {job_id: stored.revision for job_id, stored in locked.jobs.items()}
    found = [revisions.get(one.job.job_id) == one.revision for one in kept if one.revision is not None]
    return all(found) if found else None


def _readable(
    locked: TriedLocks, known_jobs: KnownJobs, kept: Mapping[str, KnownJob]
) -> tuple[dict[str, Job], dict[str, Retryable]]:
    """The jobs, those that are not current still without trials, and why some cannot be used."""
    jobs: dict[str, Job] = {}
    unusable: dict[str, Retryable] = {
        job_id: JobHeld(job_id, last_seq=last_seq) for job_id, last_seq in locked.busy.items()
    }
    for job_id, stored in sorted(locked.jobs.items()):
        try:
            is_unread = _is_unread(stored, kept)
            jobs[job_id] = kept[job_id].job if is_unread else known_jobs.read(stored, kept.get(job_id))
        except StateTooNew as error:
            unusable[job_id] = error
        except Rejected as error:
            unusable[job_id] = JobDamaged(f"job {job_id} cannot be read: {error}")
    return jobs, unusable


async def _orphans(uow: UnitOfWork, requests: Sequence[Request], *, found: AbstractSet[str]) -> dict[str, Retryable]:
    """A job without a row is unknown, unless it has a log; a registration finds that out by itself."""
    missing = {request.job_id for request in requests} - found - _registering(requests)
    orphans = await uow.orphans(missing) if missing else ()
    return {job_id: JobDamaged(f"job {job_id} has a log, and its row is missing") for job_id in orphans}


def _registering(requests: Sequence[Request]) -> set[str]:
    return {request.job_id for request in requests if isinstance(request.command, RegisterJob)}


async def _known(
    uow: UnitOfWork,
    requests: Sequence[Request],
    jobs: Mapping[str, Job],
    *,
    rules: Rules,
    known_jobs: KnownJobs,
    locked: AbstractSet[str],
) -> Known:
    """What these need, in its two steps. What they will need only after one another is not in the store yet."""
    asked = _asked(requests, jobs)
    missing = {(job_id, one.trial) for job_id, one in asked if one.trial is not None}
    trials = await uow.trials(missing) if missing else {}
    if trials:
        asked = _asked(requests, _with_trials(jobs, trials))
    return Known(
        trials=trials,
        reports=await _reports(uow, asked),
        power_profiles=await _power_profiles(uow, asked),
        other_jobs=await _other_jobs(uow, asked, known_jobs=known_jobs, locked=locked),
        jobs_owned={owner: await uow.count_jobs(owner) for owner in _counted(requests, asked, rules)},
    )


def _asked(requests: Sequence[Request], jobs: Mapping[str, Job]) -> _Asked:
    return [(request.job_id, _needs_of(request, jobs.get(request.job_id))) for request in requests]


def _needs_of(request: Request, job: Job | None) -> Needs:
    return needs(job or Job(job_id=request.job_id), request.command, user=request.user)


def _with_trials(jobs: Mapping[str, Job], trials: Mapping[TrialKey, Trial]) -> dict[str, Job]:
    """The jobs, each with those of the trials that are its own."""
    added: defaultdict[str, dict[int, Trial]] = defaultdict(dict)
    for (job_id, number), trial in trials.items():
        added[job_id][number] = trial
    return {job_id: replace(job, trials={**job.trials, **added[job_id]}) for job_id, job in jobs.items()}


async def _reports(uow: UnitOfWork, asked: _Asked) -> Mapping[tuple[str, ReportKey], EpochReport]:
    reports: dict[tuple[str, ReportKey], EpochReport] = {}
    for job_id, key in {(job_id, one.earlier_report) for job_id, one in asked if one.earlier_report is not None}:
        number, epoch = key
        found = await uow.epoch_report((job_id, number), epoch)
        if found is not None:
            reports[job_id, key] = found
    return reports


async def _power_profiles(uow: UnitOfWork, asked: _Asked) -> Mapping[str, PowerProfiles]:
    profiles: defaultdict[str, dict[tuple[int, str], tuple[PowerMeasurement, ...]]] = defaultdict(dict)
    kinds = {(job_id, one.power_profiles.key) for job_id, one in asked if one.power_profiles is not None}
    for found in await uow.power_profiles(kinds) if kinds else ():
        profiles[found.job_id][found.batch_size, found.hardware.key] = found.measurements
    return profiles


def _counted(requests: Sequence[Request], asked: _Asked, rules: Rules) -> Sequence[str]:
    """The logins whose jobs are to be counted, in one order everywhere: who counts keeps others from doing so.

    A job that is deleted before, in the same batch, is registered as a new one.
    """
    deleted = {request.job_id for request in requests if isinstance(request.command, DeleteJob)}
    again = {one.user for one in requests if one.job_id in deleted and isinstance(one.command, RegisterJob)}
    owners = again | {one.new_owner for _, one in asked}
    return sorted(owner for owner in owners if owner is not None and rules.quota_of(owner).jobs is not None)


async def _other_jobs(
    uow: UnitOfWork, asked: _Asked, *, known_jobs: KnownJobs, locked: AbstractSet[str]
) -> Mapping[str, Job]:
    """The jobs that others inherit from, without a lock: two that name each other must not wait for one another.

    One that cannot be read counts as not there: a training is worth more than what it would know.
    """
    jobs: dict[str, Job] = {}
    named = {one.other_job for _, one in asked if one.other_job is not None} - locked
    for stored in (await uow.jobs(named) if named else {}).values():
        with suppress(Rejected, StateTooNew):
            jobs[stored.job_id] = known_jobs.read(stored, known_jobs.of([stored.job_id]).get(stored.job_id))
    return jobs
