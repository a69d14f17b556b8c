"""One batch of commands in one unit of work: lock, recollect, decide the rest, save."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from bso.domain.commands import PowerMeasurement, RegisterJob, ReportEpoch, Request
from bso.domain.decide import (
    Decision,
    Rules,
    job_like,
    needs_earlier_report,
    needs_profiles_of,
    trial_asked_for,
)
from bso.domain.errors import Rejected, Retryable
from bso.domain.events import EpochReported, Event, JobDeleted, PowerProfiled
from bso.domain.identifiers import identifier_problem
from bso.domain.job import Job
from bso.domain.log import RecordedEvent
from bso.domain.policies import PolicyMissing
from bso.domain.trial import EpochReport, Trial
from bso.schema.errors import StateTooNew
from bso.service.answers import Answer, Undecided, poisoned, recalled, repeated
from bso.service.errors import Conflict, JobDamaged, OutOfTime, Unstorable
from bso.service.log_epochs import LogWatch
from bso.service.ports import Decide, UnitOfWork
from bso.service.records import (
    Changes,
    NewEvent,
    PowerProfile,
    Recollection,
    StoredEvent,
    StoredJob,
    TrialKey,
)
from bso.service.serialization import SnapshotReader, changed_jobs, changed_trials, report_in, row_of

_LONG_S = 0.001  # for one decision
_MANY_SIZES = 64  # with more batch sizes a decision may take tenths of a second: others go on beside it
_OUT_OF_TIME = OutOfTime("the commands before have used up the time of the transaction")
_LARGEST = 2**63 - 1
"""No store can be asked for a larger trial number; decide refuses it as unknown."""


@dataclass(slots=True, kw_only=True)
class _Decided:
    """An answer whose events have no event_id yet."""

    answer: Answer
    events: tuple[RecordedEvent, ...] = ()


@dataclass(slots=True, kw_only=True)
class Batch:
    """The working memory of one batch. Commands of one job build on one another, in the order they came.

    ``waits``: for jobs that another transaction holds; else their commands are not decided. After ``budget_s`` of
    deciding the rest is not, either: the jobs are locked meanwhile.
    """

    uow: UnitOfWork
    reader: SnapshotReader
    rules: Rules
    decide: Decide
    waits: bool = True
    budget_s: float = math.inf
    watch: LogWatch | None = None
    _spent_s: float = 0.0
    _stored: Mapping[str, StoredJob] = field(default_factory=dict)
    _loaded: dict[str, Job] = field(default_factory=dict)
    _jobs: dict[str, Job] = field(default_factory=dict)
    _unusable: dict[str, Retryable] = field(default_factory=dict)
    _siblings: dict[str, Job] = field(default_factory=dict)
    _events: list[NewEvent] = field(default_factory=list)
    _profiles: dict[tuple[str, int, str], PowerProfile] = field(default_factory=dict)
    _unprofiled: set[str] = field(default_factory=set)
    _known_profiles: dict[str, dict[tuple[int, str], tuple[PowerMeasurement, ...]]] = field(default_factory=dict)
    _reports: dict[tuple[TrialKey, float], EpochReport] = field(default_factory=dict)
    _answered: dict[str, Answer] = field(default_factory=dict)

    async def run(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
        """Decide and save, but do not commit. Raises Unstorable where a state cannot be encoded, LogOutdated."""
        since = None if self.watch is None else self.watch.seen
        memory = await self._lock(requests)
        self._read_snapshots()
        await self._find_orphans(requests)
        open_to = [request for request in requests if request.job_id not in self._unusable]
        if memory is None:
            command_ids = {request.command_id for request in open_to}
            memory = await self.uow.recollect(command_ids, active_of=self._loaded.keys())
        if self.watch is not None:
            self.watch.check(memory.log_epoch, since=since)
        await self._load([request for request in open_to if request.command_id not in memory.replies], memory)
        decided: dict[int, _Decided] = {}
        for request in open_to:
            if self._spent_s < self.budget_s and request.job_id not in self._unusable:
                found = await self._answer(request, memory)
                if isinstance(found, PolicyMissing):
                    self._unusable[request.job_id] = found  # nor its other commands, which come after this one
                else:
                    decided[id(request)] = found
        event_ids = await self._save(memory)
        return [
            _with_events(decided[id(request)], event_ids)
            if id(request) in decided
            else Undecided(request=request, cause=self._unusable.get(request.job_id, _OUT_OF_TIME))
            for request in requests
        ]

    async def _lock(self, requests: Sequence[Request]) -> Recollection | None:
        """Lock the jobs, and return what was recollected with it."""
        job_ids = sorted({request.job_id for request in requests})
        creating = _registering(requests)
        if self.waits:
            self._stored = await self.uow.lock(job_ids, creating=creating)
            return None
        command_ids = {request.command_id for request in requests}
        tried = await self.uow.try_lock(job_ids, creating=creating, command_ids=command_ids)
        self._stored = tried.jobs
        self._unusable |= {job_id: Conflict(f"another transaction holds job {job_id}") for job_id in tried.busy}
        return tried.memory

    def _read_snapshots(self) -> None:
        for job_id, stored in sorted(self._stored.items()):
            try:
                self._loaded[job_id] = self.reader.read(stored)
            except StateTooNew as error:
                self._unusable[job_id] = error
            except Rejected as error:
                self._unusable[job_id] = JobDamaged(f"job {job_id} cannot be read: {error}")

    async def _find_orphans(self, requests: Sequence[Request]) -> None:
        """A job without a row is unknown, unless it has a log; a registration finds that out by itself."""
        known = {*self._stored, *self._unusable, *_registering(requests)}
        missing = {request.job_id for request in requests} - known
        for job_id in await self.uow.orphans(missing) if missing else ():
            self._unusable[job_id] = JobDamaged(f"job {job_id} has a log, and its row is missing")

    async def _load(self, requests: Sequence[Request], memory: Recollection) -> None:
        """Everything that deciding these needs."""
        trials = {key: trial for key, trial in memory.active.items() if key[0] in self._loaded}
        asked = {
            (request.job_id, number)
            for request in requests
            if request.job_id in self._loaded
            and (number := trial_asked_for(request.command)) is not None
            and 0 < number <= _LARGEST
        }
        if missing := asked - trials.keys():
            trials.update(await self.uow.trials(missing))
        numbered: dict[str, dict[int, Trial]] = {job_id: {} for job_id in self._loaded}
        for (job_id, number), trial in sorted(trials.items()):
            numbered[job_id][number] = trial
        self._loaded = {job_id: replace(job, trials=numbered[job_id]) for job_id, job in self._loaded.items()}
        self._jobs = dict(self._loaded)
        await self._load_profiles(requests)
        await self._load_siblings(requests)

    async def _load_profiles(self, requests: Sequence[Request]) -> None:
        asked = {
            (request.job_id, kind.key)
            for request in requests
            if request.job_id in self._loaded
            and (kind := needs_profiles_of(self._loaded[request.job_id], request.command)) is not None
        }
        for profile in await self.uow.power_profiles(asked) if asked else ():
            self._know(profile)

    async def _load_siblings(self, requests: Sequence[Request]) -> None:
        """The jobs that others inherit from, without a lock: two that name each other must not wait for one another.

        One that cannot be read counts as not there: a training is worth more than what it would know.
        """
        named = {like for request in requests if (like := job_like(request.command)) is not None}
        asked = {like for like in named - self._stored.keys() if identifier_problem(like) is None}
        for stored in (await self.uow.jobs(asked) if asked else {}).values():
            with suppress(Rejected, StateTooNew):
                self._siblings[stored.job_id] = self.reader.read(stored)

    async def _answer(self, request: Request, memory: Recollection) -> _Decided | PolicyMissing:
        known = memory.replies.get(request.command_id)
        if known is not None:
            return _Decided(answer=recalled(request, known))
        if request.command_id in self._answered:
            return _Decided(answer=repeated(request, self._answered[request.command_id]))
        decided = await self._decided(request, memory)
        if isinstance(decided, PolicyMissing):
            return decided
        if decided.events:
            self._answered[request.command_id] = decided.answer
        return decided

    async def _decided(self, request: Request, memory: Recollection) -> _Decided | PolicyMissing:
        job = self._jobs.get(request.job_id)
        earlier = await self._earlier_report(job, request) if job is not None else None
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            decide = partial(
                self.decide,
                job,
                request,
                now=memory.now,
                rules=self.rules,
                earlier=earlier,
                power_profiles=self._known_profiles.get(request.job_id, {}),
                like=self._like(request),
            )
            is_long = job is not None and job.is_registered and len(job.spec.batch_sizes) > _MANY_SIZES
            decision = await asyncio.to_thread(decide) if is_long else decide()
            events = _recorded(request, decision, job.last_seq if job is not None else 0, memory)
            rows = [row_of(event, decision.reply) for event in events]
            took_s = clock() - began_s
        except PolicyMissing as error:
            return error
        except Exception as error:  # noqa: BLE001 - a bug in a rule must not take the rest of the batch with it
            return _Decided(answer=poisoned(request, f"{type(error).__name__}: {error}"))
        if job is not None or events:
            self._jobs[request.job_id] = decision.job
        self._events.extend(rows)
        for event in events:
            self._note(request.job_id, event.event)
        self._spent_s += took_s
        if took_s > _LONG_S:
            await asyncio.sleep(0)  # let others have their turn
        return _Decided(answer=Answer(request=request, reply=decision.reply, took_s=took_s), events=events)

    def _like(self, request: Request) -> Job | None:
        """The job to inherit from; one of this batch as the commands before have left it."""
        like = job_like(request.command)
        return None if like is None else self._jobs.get(like, self._siblings.get(like))

    async def _earlier_report(self, job: Job, request: Request) -> EpochReport | None:
        command = request.command
        if not isinstance(command, ReportEpoch) or not math.isfinite(command.epoch):
            return None
        if not needs_earlier_report(job, command):
            return None
        key = (request.job_id, command.trial_number)
        found = await self.uow.epoch_report(key, command.epoch)
        return found if found is not None else self._reports.get((key, command.epoch))

    def _note(self, job_id: str, event: Event) -> None:
        if isinstance(event, EpochReported):
            self._reports.setdefault(((job_id, event.trial_number), event.epoch), report_in(event))
        elif isinstance(event, PowerProfiled):
            profile = PowerProfile(
                job_id=job_id, batch_size=event.batch_size, hardware=event.hardware, measurements=event.measurements
            )
            self._profiles[job_id, event.batch_size, event.hardware.key] = profile
            self._know(profile)
        elif isinstance(event, JobDeleted):
            self._profiles = {key: profile for key, profile in self._profiles.items() if key[0] != job_id}
            self._known_profiles.pop(job_id, None)
            self._unprofiled.add(job_id)

    def _know(self, profile: PowerProfile) -> None:
        known = self._known_profiles.setdefault(profile.job_id, {})
        known[profile.batch_size, profile.hardware.key] = profile.measurements

    async def _save(self, memory: Recollection) -> Mapping[tuple[str, int], int]:
        try:
            changes = Changes(
                now=memory.now,
                events=tuple(self._events),
                trials=changed_trials(self._loaded, self._jobs),
                jobs=tuple(changed_jobs(self._loaded, self._jobs)),
                unprofiled=tuple(sorted(self._unprofiled)),
                power_profiles=tuple(self._profiles[key] for key in sorted(self._profiles)),
            )
        except Exception as error:
            raise Unstorable(f"a job's state cannot be encoded: {type(error).__name__}: {error}") from error
        if self.watch is None:
            return await self.uow.save(changes)
        since = self.watch.highest_event_id
        event_ids = await self.uow.save(changes)
        new = [event_ids[event.job_id, event.seq] for event in self._events]
        self.watch.check_event_ids(new, since=since)
        return event_ids


def _registering(requests: Sequence[Request]) -> set[str]:
    return {request.job_id for request in requests if isinstance(request.command, RegisterJob)}


def _recorded(request: Request, decision: Decision, last_seq: int, memory: Recollection) -> tuple[RecordedEvent, ...]:
    return tuple(
        RecordedEvent(
            job_id=request.job_id,
            seq=last_seq + 1 + part,
            recorded_at=memory.now,
            command_id=request.command_id,
            part=part,
            event=event,
            log_epoch=memory.epoch_number,
        )
        for part, event in enumerate(decision.events)
    )


def _with_events(decided: _Decided, event_ids: Mapping[tuple[str, int], int]) -> Answer:
    events = tuple(StoredEvent(event_id=event_ids[event.job_id, event.seq], recorded=event) for event in decided.events)
    return replace(decided.answer, events=events)
