"""A store in memory, for tests. It passes the contract suite that all stores pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from bso.domain.rights import Reader, owns
from bso.domain.trial import EpochReport, Trial
from bso.service.errors import EventIdsReused
from bso.service.log_epochs import InMemoryLogEpochs
from bso.service.parked_jobs import InMemoryParkedJobs
from bso.service.records import (
    MOST_ACTIVE,
    ChangeSet,
    JobChange,
    JobOnKind,
    JobOverview,
    JobSnapshot,
    JobSummary,
    LapsedLease,
    LoggedEvent,
    NewEvent,
    PowerProfile,
    Recollection,
    RecordedReply,
    SchemaState,
    SchemaStatus,
    StoredEvent,
    StoredJob,
    TrialKey,
    TriedLocks,
    UnpublishedPage,
    reply_of,
)
from bso.service.serialization import epoch_report_of, is_among, recorded_from
from bso.service.tokens import InMemoryTokens

IN_MEMORY_SCHEMA = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    last_seq: int
    revision: int
    snapshot: JobSnapshot
    created_at: datetime
    changed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    event_id: int
    new: NewEvent
    recorded_at: datetime
    is_published: bool = False


@dataclass(slots=True, kw_only=True)
class InMemoryTables:
    """What has been committed. A unit of work keeps its changes beside it, and makes them at commit."""

    last_event_id: int = 0
    jobs: dict[str, _Job] = field(default_factory=dict)
    trials: dict[TrialKey, Trial] = field(default_factory=dict)
    events: dict[int, _Event] = field(default_factory=dict)
    replies: dict[str, RecordedReply] = field(default_factory=dict)
    profiles: dict[tuple[str, int, str], PowerProfile] = field(default_factory=dict)


class InMemoryStore:
    """Units of work one after another, over ``tables``. ``clock`` gives the time, in UTC."""

    optimistic = None

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self.tables = InMemoryTables()
        self.parked_jobs = InMemoryParkedJobs(clock)
        self.tokens = InMemoryTokens(clock)
        self.log_epochs = InMemoryLogEpochs(clock, raise_event_ids=self._raise_event_ids)

    @asynccontextmanager
    async def unit_of_work(self) -> AsyncIterator[InMemoryUnitOfWork]:
        """Begin a transaction; others wait until it is over."""
        async with self._turn:
            yield InMemoryUnitOfWork(self.tables, self._clock, self.log_epochs)

    async def jobs(
        self, *, after: str = "", limit: int | None = None, reader: Reader | None = None
    ) -> Sequence[JobSummary]:
        """Jobs by id, tombstones included: all, or a page of those after an id that a reader may be allowed to read."""
        jobs = sorted(self.tables.jobs.items())
        chosen = [(job_id, job) for job_id, job in jobs if job_id > after and _may_read(reader, job_id, job.snapshot)]
        return [_summary(job_id, job) for job_id, job in chosen[:limit]]

    async def overviews(
        self, *, after: str = "", limit: int | None = None, reader: Reader | None = None
    ) -> Sequence[JobOverview]:
        """The jobs that ``jobs`` gives, each with its snapshot, its last and its active trials."""
        tables = self.tables
        return [
            JobOverview(
                summary=summary,
                stored=_stored(summary.job_id, tables.jobs[summary.job_id]),
                last_trial=tables.trials.get((summary.job_id, summary.last_trial_number)),
                active=tuple((await self.active_trials(summary.job_id))[-MOST_ACTIVE:]),
            )
            for summary in await self.jobs(after=after, limit=limit, reader=reader)
        ]

    async def job(self, job_id: str) -> StoredJob | None:
        """A job's snapshot."""
        found = self.tables.jobs.get(job_id)
        return None if found is None else _stored(job_id, found)

    async def summary(self, job_id: str) -> JobSummary | None:
        """What is stored of a job beside its snapshot."""
        found = self.tables.jobs.get(job_id)
        return None if found is None else _summary(job_id, found)

    async def active_trials(self, job_id: str) -> Sequence[Trial]:
        """The trials of a job that have not ended, in order of their numbers."""
        return [trial for trial in await self.trials(job_id) if trial.is_active]

    async def trials(self, job_id: str, *, after: int = 0, limit: int | None = None) -> Sequence[Trial]:
        """The trials of a job after a number, in order of their numbers: all, or a page of them."""
        own = [trial for key, trial in sorted(self.tables.trials.items()) if key[0] == job_id and key[1] > after]
        return own[:limit]

    async def power_profiles(self, job_id: str) -> Sequence[PowerProfile]:
        """What was measured of a job's batch sizes."""
        return [profile for key, profile in sorted(self.tables.profiles.items()) if key[0] == job_id]

    async def history(
        self, job_id: str | None = None, *, after: int = 0, before: datetime | None = None, limit: int = 1000
    ) -> Sequence[StoredEvent]:
        """A page of events by event_id."""
        chosen = (
            event
            for event_id, event in sorted(self.tables.events.items())
            if event_id > after
            and (job_id is None or event.new.job_id == job_id)
            and (before is None or event.recorded_at < before)
        )
        return [_read(event) for _, event in zip(range(limit), chosen, strict=False)]

    async def last_event_id(self, job_id: str | None = None) -> int:
        """The highest event_id in the log of a job or of all; 0 if there is none."""
        ids = (event_id for event_id, event in self.tables.events.items() if job_id in (None, event.new.job_id))
        return max(ids, default=0)

    async def last_event_ids(self, job_ids: Sequence[str], *, reader: Reader | None = None) -> Mapping[str, int]:
        """The event_id of the last event of each of these jobs that there are; 0 where that was pruned."""
        jobs = self.tables.jobs
        there = (name for name in job_ids if name in jobs and _may_read(reader, name, jobs[name].snapshot))
        last = dict.fromkeys(there, 0)
        for event_id, one in sorted(self.tables.events.items()):
            known = self.tables.jobs.get(one.new.job_id)
            if one.new.job_id in last and known is not None and one.new.seq == known.last_seq:
                last[one.new.job_id] = event_id
        return last

    async def lapsed_leases(
        self, *, job_id: str | None = None, without: Collection[str] = (), limit: int = 100
    ) -> Sequence[LapsedLease]:
        """Active trials whose lease is over by the clock, the oldest first."""
        now = self._clock()
        lapsed = [
            LapsedLease(
                job_id=key[0],
                trial_number=trial.trial_number,
                trial_id=trial.trial_id,
                state=trial.state,
                lease_expires_at=trial.lease_expires_at,
            )
            for key, trial in sorted(self.tables.trials.items())
            if trial.is_active and trial.lease_expires_at is not None and trial.lease_expires_at <= now
            if key[0] not in without and not self.parked_jobs.is_known(key[0])
            if job_id is None or key[0] == job_id
        ]
        return sorted(lapsed, key=lambda lease: lease.lease_expires_at)[:limit]

    async def unpublished(self, *, older_than_s: float, after: int = 0, limit: int = 500) -> UnpublishedPage:
        """A page of the events that nobody marked as published, by event_id. All can be read."""
        until = self._clock() - timedelta(seconds=older_than_s)
        events = (event for event_id, event in sorted(self.tables.events.items()) if event_id > after)
        chosen = (event for event in events if not event.is_published and event.recorded_at <= until)
        found = [_read(event) for _, event in zip(range(limit), chosen, strict=False)]
        next_after = found[-1].event_id if len(found) == limit else None
        return UnpublishedPage(events=found, unreadable=0, next_after=next_after)

    async def mark_published(self, event_ids: Collection[int]) -> None:
        """Say that these events have reached the broker."""
        async with self._turn:
            for event_id in set(event_ids) & self.tables.events.keys():
                self.tables.events[event_id] = replace(self.tables.events[event_id], is_published=True)

    async def ping(self) -> None:
        """Memory always answers."""

    async def schema_state(self) -> SchemaState:
        """Memory has no schema of its own."""
        return SchemaState(found=IN_MEMORY_SCHEMA, expected=IN_MEMORY_SCHEMA, status=SchemaStatus.CURRENT)

    async def close(self) -> None:
        """Nothing to close; what is stored stays readable."""

    def _raise_event_ids(self, event_id: int) -> int:
        before = self.tables.last_event_id
        self.tables.last_event_id = max(before, event_id)
        return before


class InMemoryUnitOfWork:
    """One transaction: reads what is committed, and keeps its own writes until commit."""

    def __init__(self, tables: InMemoryTables, clock: Callable[[], datetime], epochs: InMemoryLogEpochs) -> None:
        self.tables = tables
        self._clock = clock
        self._epochs = epochs
        self._pending: list[Callable[[], None]] = []

    async def lock(self, job_ids: Collection[str], *, creating: Collection[str]) -> Mapping[str, StoredJob]:
        """Read jobs."""
        return await self.jobs(job_ids)

    async def try_lock(
        self,
        job_ids: Collection[str],
        *,
        creating: Collection[str],
        command_ids: Collection[str],
        known: Mapping[str, int],
    ) -> TriedLocks:
        """Read jobs; no other unit of work holds any."""
        jobs = await self.jobs(job_ids)
        return TriedLocks(
            jobs={
                job_id: replace(stored, state="") if known.get(job_id) == stored.revision else stored
                for job_id, stored in jobs.items()
            }
        )

    async def orphans(self, job_ids: Collection[str]) -> Collection[str]:
        """Those of these jobs that have a log and no row."""
        logged = {event.new.job_id for event in self.tables.events.values()}
        return logged.intersection(job_ids).difference(await self.jobs(job_ids))

    async def recollect(self, command_ids: Collection[str], *, active_of: Collection[str] = ()) -> Recollection:
        """What these commands were answered, if they were, and all active trials of the jobs ``active_of``."""
        replies = {one: self.tables.replies[one] for one in command_ids if one in self.tables.replies}
        active = {key: trial for key, trial in self.tables.trials.items() if key[0] in active_of and trial.is_active}
        return Recollection(now=self._clock(), replies=replies, active=active, log_epoch=self._epochs.epoch)

    async def trials(self, keys: Collection[TrialKey]) -> Mapping[TrialKey, Trial]:
        """These trials, as far as they exist."""
        return {key: self.tables.trials[key] for key in keys if key in self.tables.trials}

    async def jobs(self, job_ids: Collection[str]) -> Mapping[str, StoredJob]:
        """These jobs, as far as they exist."""
        jobs = self.tables.jobs
        return {job_id: _stored(job_id, jobs[job_id]) for job_id in sorted(job_ids) if job_id in jobs}

    async def count_jobs(self, owner: str) -> int:
        """How many jobs a login owns, deleted ones included."""
        return sum(job.snapshot.owner == owner for job in self.tables.jobs.values())

    async def epoch_report(self, key: TrialKey, epoch: float) -> EpochReport | None:
        """What the log holds first for exactly this epoch of a trial."""
        for _, event in sorted(self.tables.events.items()):
            new = event.new
            if (new.job_id, new.trial_number) == key and new.epoch == epoch:
                return epoch_report_of(new.type, new.payload)
        return None

    async def power_profiles(self, kinds: Collection[JobOnKind]) -> Sequence[PowerProfile]:
        """What was measured of the batch sizes of these jobs, each on the hardware kind with this key."""
        return [profile for key, profile in sorted(self.tables.profiles.items()) if (key[0], key[2]) in kinds]

    async def forget_events(self, job_id: str, *, up_to_seq: int, before: datetime) -> int:
        """Delete a job's published events up to a seq, if recorded before a moment, at commit; returns their number."""
        gone = {
            event_id: event.new
            for event_id, event in self.tables.events.items()
            if event.new.job_id == job_id
            and event.new.seq <= up_to_seq
            and event.recorded_at < before
            and event.is_published
        }
        self._pending.append(lambda: self._forget(gone))
        return len(gone)

    async def forget_job(self, job_id: str) -> None:
        """Delete everything of a job at commit."""
        gone = {event_id: event.new for event_id, event in self.tables.events.items() if event.new.job_id == job_id}
        self._pending += [lambda: self._forget(gone), lambda: self._forget_rows(job_id)]

    async def commit(self, changes: ChangeSet | None = None, *, above: int = 0) -> Mapping[tuple[str, int], int]:
        """Apply the writes; returns the event_id of each new event by (job_id, seq)."""
        first = self.tables.last_event_id + 1
        if changes is not None and changes.events and first <= above:
            raise EventIdsReused
        for apply in self._pending:
            apply()
        self._pending.clear()
        if changes is None:
            return {}
        self._apply(changes, first)
        self.tables.last_event_id += len(changes.events)
        return {(event.job_id, event.seq): first + index for index, event in enumerate(changes.events)}

    def _apply(self, changes: ChangeSet, first_event_id: int) -> None:
        for event_id, new in enumerate(changes.events, first_event_id):
            self.tables.events[event_id] = _Event(event_id=event_id, new=new, recorded_at=changes.now)
            if new.reply is not None:
                self.tables.replies[new.command_id] = reply_of(new)
        self.tables.trials.update(changes.trials)
        for change in changes.jobs:
            self.tables.jobs[change.job_id] = self._changed(change, changes.now)
        self._forget_profiles(changes.unprofiled)
        for profile in changes.power_profiles:
            self.tables.profiles[profile.job_id, profile.batch_size, profile.hardware.key] = profile

    def _changed(self, change: JobChange, now: datetime) -> _Job:
        before = self.tables.jobs.get(change.job_id)
        snapshot = change.snapshot or (before.snapshot if before is not None else None)
        assert snapshot is not None, "a new job comes with its snapshot"
        return _Job(
            last_seq=change.last_seq,
            revision=change.revision,
            snapshot=snapshot,
            created_at=now if before is None else before.created_at,
            changed_at=now if before is None or change.has_events else before.changed_at,
        )

    def _forget(self, gone: Mapping[int, NewEvent]) -> None:
        for event_id, new in gone.items():
            del self.tables.events[event_id]
            self.tables.replies.pop(new.command_id, None)

    def _forget_rows(self, job_id: str) -> None:
        self.tables.jobs.pop(job_id, None)
        self.tables.trials = {key: one for key, one in self.tables.trials.items() if key[0] != job_id}
        self._forget_profiles([job_id])

    def _forget_profiles(self, job_ids: Collection[str]) -> None:
        self.tables.profiles = {key: one for key, one in self.tables.profiles.items() if key[0] not in job_ids}


def _stored(job_id: str, job: _Job) -> StoredJob:
    return StoredJob(job_id=job_id, last_seq=job.last_seq, revision=job.revision, state=job.snapshot.state)


def _may_read(reader: Reader | None, job_id: str, job: JobSnapshot) -> bool:
    if reader is None:
        return True
    is_owned = owns(reader.login, owner=job.owner, job_id=job_id, teams=reader.teams)
    return is_owned or is_among(reader.login, job.granted_to)


def _summary(job_id: str, job: _Job) -> JobSummary:
    return JobSummary(
        job_id=job_id,
        last_seq=job.last_seq,
        spec=job.snapshot.spec,
        version_number=job.snapshot.version_number,
        version=job.snapshot.version,
        policy=job.snapshot.policy,
        owner=job.snapshot.owner,
        is_deleted=job.snapshot.is_deleted,
        last_trial_number=job.snapshot.last_trial_number,
        created_at=job.created_at,
        changed_at=job.changed_at,
    )


def _read(event: _Event) -> StoredEvent:
    recorded = recorded_from(LoggedEvent(new=event.new, recorded_at=event.recorded_at))
    return StoredEvent(event_id=event.event_id, recorded=recorded)
