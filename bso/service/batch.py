"""One batch of commands in one unit of work: read, decide, write."""

from __future__ import annotations

import asyncio
import math
from collections import ChainMap, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, thread_time  # noqa: TID251 - no decision depends on them

from bso.domain.commands import GiveJob, RegisterJob, Request
from bso.domain.decide import Context, Decision, Known, Rules, facts_for, withheld
from bso.domain.errors import Retryable
from bso.domain.events import Event
from bso.domain.frozen_values import replace
from bso.domain.job import Job
from bso.domain.log import RecordedEvent
from bso.domain.policies import PolicyMissing, place_in_policy
from bso.service.answers import Answer, Undecided, poisoned, recalled
from bso.service.errors import EventIdsReused, NotAsExpected, OutOfTime, Unstorable
from bso.service.log_epochs import LogWatch
from bso.service.optimistic import Assumptions, expectation_of
from bso.service.ports import Decide, OptimisticStore, UnitOfWork, UnitsOfWork
from bso.service.read_set import ReadSet, read_set
from bso.service.records import ChangeSet, NewEvent, StoredEvent, reply_of
from bso.service.serialization import (
    KnownJobs,
    changed_jobs,
    changed_profiles,
    changed_trials,
    recorded_after,
    row_of,
)

_LONG_S, _COSTLY_S = 0.001, 0.003  # for one decision
_MANY_SIZES = 64  # with more batch sizes a decision may take tenths of a second: others go on beside it
_IN_A_THREAD_S, _MOST_LONG = 0.05, 10_000  # nor are others kept waiting again by a job that once took so long
_OUT_OF_TIME = OutOfTime("the commands before have used up the time of the transaction")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSet:
    """What a batch is to write. Each decision adds to it, and the next one builds on that.

    ``jobs`` are as the decisions have left them, ``events`` (by job) and ``rows`` (in order) are those of the
    decisions, ``replies`` the rows with the replies to commands that have events, by command_id.
    """

    jobs: dict[str, Job]
    events: defaultdict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    rows: list[NewEvent] = field(default_factory=list)
    replies: dict[str, NewEvent] = field(default_factory=dict)

    def add(self, answer: Answer, decision: Decision, rows: Sequence[NewEvent]) -> None:
        """Add a decision. A job that is not registered stays unknown."""
        job_id = answer.request.job_id
        if rows or job_id in self.jobs:
            self.jobs[job_id] = decision.job
        if rows:
            self.events[job_id] += decision.events
            self.rows.extend(rows)
            self.replies[answer.request.command_id] = rows[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    """An answer whose events have no event_id yet."""

    answer: Answer
    events: tuple[RecordedEvent, ...] = ()


class _Stopwatch:
    """CPU time of this thread. To read it is a system call: after long decisions, and else once a millisecond at most.

    Of a decision below a millisecond the time on the clock counts: its CPU time is no more than that.
    """

    def __init__(self) -> None:
        self._read()

    def _read(self) -> None:
        self._read_at_s, self._cpu_s = perf_counter(), thread_time()

    def time(self, decide: Callable[[], Decision]) -> tuple[Decision, float]:
        """A decision, and the CPU time that it took [s], to a millisecond."""
        began_s = perf_counter()
        before_s = began_s - self._read_at_s
        if before_s > _LONG_S:
            self._read()
            before_s = 0.0
        decision = decide()
        took_s = perf_counter() - began_s
        if took_s > _LONG_S:
            took_s = max(0.0, thread_time() - self._cpu_s - before_s)
        return decision, took_s


@dataclass(slots=True, kw_only=True)
class Batches:
    """Decides batches by a rule. Commands of one job build on one another, in the order they came.

    After ``budget_s`` of deciding the rest of a batch is left undecided: the jobs are locked meanwhile. ``deciding_s``
    is what all decisions took so far. Both are CPU time: a busy or stopped machine makes no job costly.
    """

    rules: Rules
    decide: Decide
    budget_s: float = math.inf
    watch: LogWatch | None = None
    known_jobs: KnownJobs = field(default_factory=KnownJobs)
    optimistic: OptimisticStore | None = None
    deciding_s: float = field(default=0.0, init=False)
    _long: set[str] = field(default_factory=set, init=False)
    _assumptions: Assumptions = field(init=False)

    def __post_init__(self) -> None:
        self._assumptions = Assumptions(self.watch)

    async def attempt(self, store: UnitsOfWork, requests: Sequence[Request]) -> list[Answer | Undecided]:
        """Decide, save and commit in one transaction, without those whose jobs another transaction holds.

        In an ``optimistic`` store nothing is read where that seems not to be needed. Raises as ``run`` does.
        """
        if self.optimistic is not None:
            answers = await self._unread(self.optimistic, requests)
            if answers is not None:
                return answers
        async with store.unit_of_work() as uow:
            return await self.run(uow, requests, waits=False)

    async def _unread(self, store: OptimisticStore, requests: Sequence[Request]) -> list[Answer | Undecided] | None:
        """The answers, without reading anything before; None: nothing has happened, and the store has to be read."""
        assumed = self._assumptions.read_set(requests, self.known_jobs)
        if assumed is None:
            return None
        written = WriteSet(jobs=dict(assumed.jobs))
        answers = await self._answer(requests, assumed, written)
        decided = [one for one in answers if isinstance(one, _Decided)]
        # Whether a command was decided before, the store finds by its events.
        if not decided or not all(one.events for one in decided):
            self._assumptions.note_vain()
            return None
        changes = _changes(assumed, written)
        above = 0 if self.watch is None else self.watch.highest_event_id
        try:
            event_ids = await store.commit_if(expectation_of(assumed), changes, above=above)
        except NotAsExpected:
            self._assumptions.note_refusal()
            return None
        except BaseException:  # nobody knows whether it was recorded
            self.known_jobs.forget(assumed.jobs)
            raise
        self._assumptions.note_recorded()
        if self.watch is not None:
            self.watch.recorded(event_ids.values())
        self._keep(assumed, written, changes)
        return _numbered_all(answers, event_ids)

    async def run(self, uow: UnitOfWork, requests: Sequence[Request], *, waits: bool) -> list[Answer | Undecided]:
        """Decide, save and commit. Raises Unstorable where a state cannot be encoded, LogOutdated.

        ``waits``: for jobs that another transaction holds; else their commands are not decided.
        """
        read = await read_set(
            uow, requests, rules=self.rules, known_jobs=self.known_jobs, waits=waits, watch=self.watch
        )
        if self.optimistic is not None:
            self._assumptions.note(read)
        written = WriteSet(jobs=dict(read.jobs))
        answers = await self._answer(requests, read, written)
        changes = _changes(read, written)
        self.known_jobs.forget(read.jobs)
        event_ids = await self._commit(uow, changes)
        self._keep(read, written, changes)
        return _numbered_all(answers, event_ids)

    async def _answer(
        self, requests: Sequence[Request], read: ReadSet, written: WriteSet
    ) -> list[_Decided | Undecided]:
        known = replace(read.known, other_jobs=ChainMap(written.jobs, dict(read.known.other_jobs)))
        answers: list[_Decided | Undecided] = []
        spent_s = 0.0
        unusable: dict[str, Retryable] = dict(read.unusable)
        took_s = 0.0
        stopwatch = _Stopwatch()
        for request in requests:
            if took_s > _LONG_S:  # others have their turn, and as much time as a job whose decisions are costly
                await asyncio.sleep(took_s if took_s > _COSTLY_S else 0.0)
            took_s = 0.0
            cause = unusable.get(request.job_id, None if spent_s < self.budget_s else _OUT_OF_TIME)
            if cause is not None:
                answers.append(Undecided(request=request, cause=cause))
                continue
            try:
                decided = self._answered_before(request, read, written) or await self._decided(
                    request, read, written, known, stopwatch
                )
            except PolicyMissing as missing:  # nor are the job's other commands, which come after this one
                unusable[request.job_id] = missing
                answers.append(Undecided(request=request, cause=missing))
                continue
            took_s = decided.answer.took_s
            spent_s += took_s
            answers.append(decided)
        return answers

    async def _decided(
        self, request: Request, read: ReadSet, written: WriteSet, known: Known, stopwatch: _Stopwatch
    ) -> _Decided:
        try:
            job = written.jobs.get(request.job_id) or Job(job_id=request.job_id)
            if isinstance(request.command, RegisterJob | GiveJob):
                known = replace(known, jobs_owned=_owned(read, written))
            since = written.events[request.job_id]
            facts = facts_for(job, request.command, known, since=since, user=request.user)
            context = Context(
                command_id=request.command_id,
                user=request.user,
                now=read.memory.now,
                rules=self.rules,
                is_from_gateway=request.is_from_gateway,
            )
            has_many = job.is_registered and len(job.spec.batch_sizes) > _MANY_SIZES
            is_long = has_many or job.job_id in self._long
            decide = partial(self.decide, job, request.command, facts, context)
            if is_long:
                decision, took_s = await asyncio.to_thread(lambda: _Stopwatch().time(decide))
            else:
                decision, took_s = stopwatch.time(decide)
            self.deciding_s += took_s
            if took_s > _IN_A_THREAD_S and len(self._long) < _MOST_LONG:
                self._long.add(job.job_id)
            events = recorded_after(
                job.last_seq, decision.events, job_id=job.job_id, command_id=request.command_id, memory=read.memory
            )
            rows = [row_of(event, decision.reply) for event in events]
        except PolicyMissing:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a bug in a rule harms neither others nor the process
            place = place_in_policy(error)
            reason = f"{type(error).__name__}: {error}{'' if place is None else f' ({place})'}"
            return _Decided(answer=poisoned(request, reason, error))
        answer = Answer(request=request, reply=decision.reply, took_s=took_s)
        written.add(answer, decision, rows)
        return _Decided(answer=answer, events=events)

    def _answered_before(self, request: Request, read: ReadSet, written: WriteSet) -> _Decided | None:
        """The answer to a command that was decided before, or a moment ago in this batch, for who may see it."""
        recorded, first = read.memory.replies.get(request.command_id), written.replies.get(request.command_id)
        if recorded is None and first is not None:
            recorded = reply_of(first)
        if recorded is None:
            return None
        answer = recalled(request, recorded)
        if request.user is not None:
            job = written.jobs.get(request.job_id) or Job(job_id=request.job_id)
            problem = withheld(job, type(answer.reply), user=request.user, rules=self.rules)
            if problem is not None:
                answer = Answer(request=request, reply=problem)
        return _Decided(answer=answer)

    def _keep(self, read: ReadSet, written: WriteSet, changes: ChangeSet) -> None:
        """Remember the jobs as they are stored now: nobody else has changed them, as they were locked."""
        changed = {change.job_id: change for change in changes.jobs}
        for job_id, revision in read.revisions.items():
            change = changed.get(job_id)
            snapshot = None if change is None else change.snapshot
            self.known_jobs.keep(
                read.jobs[job_id] if change is None else written.jobs[job_id],
                text=read.texts[job_id] if snapshot is None else snapshot.state,
                revision=revision if change is None else change.revision,
                log_epoch=read.memory.log_epoch,
            )

    async def _commit(self, uow: UnitOfWork, changes: ChangeSet) -> Mapping[tuple[str, int], int]:
        if self.watch is None:
            return await uow.commit(changes)
        above, epoch = self.watch.highest_event_id, self.watch.seen
        try:
            event_ids = await uow.commit(changes, above=above)
        except EventIdsReused as error:
            raise self.watch.doubt(above=above, of=epoch) from error
        self.watch.recorded(event_ids.values())
        return event_ids


def _owned(read: ReadSet, written: WriteSet) -> Mapping[str, int]:
    """How many jobs logins own, after what this batch has decided."""
    counted = dict(read.known.jobs_owned)
    for owner in counted:
        counted[owner] += _number_owned(written.jobs.values(), owner) - _number_owned(read.jobs.values(), owner)
    return counted


def _number_owned(jobs: Iterable[Job], owner: str) -> int:
    return sum(job.owner == owner for job in jobs)


def _changes(read: ReadSet, written: WriteSet) -> ChangeSet:
    try:
        unprofiled, profiles = changed_profiles(written.events)
        trials = changed_trials(read.trials, written.jobs)
        with_trials = {job_id for job_id, _ in trials}
        revisions, now = read.revisions, read.memory.now
        return ChangeSet(
            now=now,
            events=tuple(written.rows),
            trials=trials,
            jobs=changed_jobs(read.jobs, written.jobs, revisions=revisions, with_trials=with_trials, now=now),
            unprofiled=unprofiled,
            power_profiles=profiles,
        )
    except Exception as error:
        raise Unstorable(f"a job's state cannot be encoded: {type(error).__name__}: {error}") from error


def _numbered_all(
    answers: Sequence[_Decided | Undecided], event_ids: Mapping[tuple[str, int], int]
) -> list[Answer | Undecided]:
    return [one if isinstance(one, Undecided) else _numbered(one, event_ids) for one in answers]


def _numbered(decided: _Decided, event_ids: Mapping[tuple[str, int], int]) -> Answer:
    events = tuple(StoredEvent(event_id=event_ids[event.job_id, event.seq], recorded=event) for event in decided.events)
    return replace(decided.answer, events=events)
