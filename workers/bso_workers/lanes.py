"""Lanes: a job that others should not wait for goes alone, beside the work: it is locked, harmed or costly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import takewhile

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.errors import BsoError
from bso.domain.policies import PolicyMissing
from bso.schema.errors import StateTooNew
from bso.service.answers import Answer, Undecided, poisoned
from bso.service.errors import Conflict, JobDamaged, JobHeld, OutOfTime
from bso_broker.messages import Delivery
from bso_workers.admission import Admitted
from bso_workers.batch_limit import BatchLimit
from bso_workers.decider import Decider
from bso_workers.troubled_jobs import TroubledJobs

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_AT_ONCE_S = 0.02  # so long a job that others hold is tried without waiting for its lock
_LONGEST_TRY_S = 5.0  # then such a job is parked
_GRACE_S = 0.5  # so long it is tried on when others need its room: other workers' batches hold a job for less
_FIRST_PAUSE_S = 0.002  # between tries, of all lanes together; of one, a quarter of the time that they took so far
_LONGEST_PAUSE_S = 0.5
_WAITING, _PROBING, _RUNNING = 2, 1, 2  # lanes that wait for a lock, try a parked job, run: each with a connection
_OF_THE_JOB = (Conflict, JobDamaged, PolicyMissing, StateTooNew)

Settle = Callable[[Sequence[Admitted], Sequence[Answer]], Awaitable[None]]


class Lanes:
    """At most one lane a job; while there is one, all commands of the job go through it, in their order.

    Lanes of jobs that others hold have at most ``most_held`` commands together, so that others find room in the
    prefetch: beyond that, the jobs that have been held longest are parked within half a second.

    ``settle`` answers what was decided; ``blame`` says what keeps the database from being written, None: nothing, so
    that the job is to blame; ``shut`` stops the intake then. ``hand_back`` lets deliveries come again.
    """

    def __init__(
        self,
        *,
        decider: Decider,
        parking: TroubledJobs,
        settle: Settle,
        blame: Callable[[], Awaitable[BsoError | None]],
        shut: Callable[[BsoError], Awaitable[None]],
        hand_back: Callable[[Sequence[Delivery]], Awaitable[None]],
        batch_limit: BatchLimit,
        most_held: int,
        grace_s: float = _GRACE_S,
    ) -> None:
        self._decider = decider
        self._parking = parking
        self._settle = settle
        self._blame = blame
        self._shut = shut
        self._hand_back = hand_back
        self._batch_limit = batch_limit
        self._most_held = most_held
        self._grace_s = grace_s
        self._waiting = asyncio.Semaphore(_WAITING)
        self._probing = asyncio.Semaphore(_PROBING)
        self._running = asyncio.Semaphore(_RUNNING)
        self._items: dict[str, list[Admitted]] = {}
        self._held: dict[str, asyncio.Timeout] = {}  # jobs that others hold, the longest first, and their deadlines
        self._last_seqs: dict[str, int] = {}  # of jobs that others hold: while they rise, others decide on them
        self._suspects: set[str] = set()  # jobs of which others held rows of trials when they were looked at
        self._tasks: set[asyncio.Task[None]] = set()

    def __contains__(self, job_id: str) -> bool:
        """Whether a job has a lane."""
        return job_id in self._items

    def waiting(self, job_id: str) -> int:
        """How many commands are in the lane of a job."""
        return len(self._items.get(job_id, ()))

    def add(self, items: Mapping[str, Sequence[Admitted]], *, are_suspect: bool = False) -> None:
        """Let commands go through the lanes of their jobs; ``are_suspect``: others hold rows of their trials."""
        for job_id, own in items.items():
            if are_suspect:
                self._suspects.add(job_id)
            if job_id in self._items:
                self._items[job_id] += own
                continue
            self._items[job_id] = list(own)
            task = asyncio.create_task(self._run(job_id), name=f"lane of {job_id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._make_room()

    async def finished(self) -> None:
        """Wait until everything in the lanes is settled."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def abandon(self) -> None:
        """End all lanes but the one that asks for it: what they have not settled is back with the broker."""
        self._items.clear()  # what comes again while they end begins another lane
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    async def close(self) -> None:
        """End all lanes; what they have not settled comes again."""
        for task in self._tasks:
            task.cancel()
        await self.finished()

    async def _run(self, job_id: str) -> None:
        items = self._items[job_id]
        some: Sequence[Admitted] = ()
        try:
            while items:
                if self._parking.pause_s(job_id):
                    await self._keep(items)
                    return
                some = items[: self._batch_limit.now]
                answers = await self._decided(job_id, some)
                if answers is None:
                    return  # what is left was kept, or is back with the broker
                del items[: len(answers)]
                await self._settle(some[: len(answers)], answers)
        except Exception:  # noqa: BLE001  logged; it must not end the worker
            _log.exception("a lane broke: its commands come again", action="lane_broke", job_id=job_id)
            await self._hand_back([one.delivery for one in (*some, *items)])  # what is settled already stays so
        finally:
            if self._items.get(job_id) is items:
                del self._items[job_id]
                self._last_seqs.pop(job_id, None)
                self._suspects.discard(job_id)

    async def _decided(self, job_id: str, some: Sequence[Admitted]) -> Sequence[Answer] | None:
        """Answers to the first commands, one at least, however often that has to be tried; None: it was given up."""
        is_last = False
        while True:
            deadline = asyncio.timeout(None)
            try:
                async with deadline, self._counted(job_id, deadline):
                    return await self._tried_often(job_id, some, deadline, is_last=is_last)
            except BsoError as error:
                await self._give_up(job_id, error)
                return None
            except Exception as error:  # noqa: BLE001  unforeseen: it may lie in one of them
                if deadline.expired():
                    is_last = True
                elif len(some) > 1:
                    return await self._one_by_one(job_id, some)
                else:
                    return [poisoned(some[0].request, f"{type(error).__name__}: {error}")]

    async def _tried_often(
        self, job_id: str, some: Sequence[Admitted], deadline: asyncio.Timeout, *, is_last: bool
    ) -> Sequence[Answer] | None:
        """The same. Raises what the job is to be given up for, TimeoutError when others need its room.

        ``is_last``: this is the last try, unless others have decided on the job meanwhile, which only is busy then.
        """
        clock = asyncio.get_running_loop().time
        began_s = since_s = clock()  # since then nobody has decided on the job
        is_parked = self._parking.knows(job_id)  # then there is one try, which may take its time if no other does
        line = self._probing if is_parked else self._waiting
        may_wait = is_parked and not is_last
        is_blameless = False  # nothing keeps others from being recorded: what failed may have been over just now
        if may_wait:
            self._hold(job_id, deadline)
        while True:
            waits = may_wait and not line.locked() and job_id not in self._suspects
            try:
                found = await self._tried(some[: self._batch_limit.now], line=line if waits else None)
                self._batch_limit.succeeded()
                return found
            except BsoError as error:
                self._batch_limit.failed(error)
                is_held = isinstance(error, Conflict)
                if self._is_busy(job_id, error):
                    since_s, is_last = clock(), False
                took_s = clock() - began_s
                if is_parked or (is_held and (is_last or (not waits and clock() - since_s > _LONGEST_TRY_S))):
                    raise
                if may_wait and not is_held:
                    if is_blameless or not await self._may_be_over(error):
                        raise
                    is_blameless = True
                is_last = is_held and waits  # it has waited in vain
                may_wait = not is_last and (not is_held or took_s > _AT_ONCE_S)
                if may_wait and is_held:
                    self._hold(job_id, deadline)
            if not is_last:
                shortest_s = _FIRST_PAUSE_S * len(self._items)
                await asyncio.sleep(min(_LONGEST_PAUSE_S, max(shortest_s, took_s / 4)))

    def _is_busy(self, job_id: str, error: BsoError) -> bool:
        """Whether others have decided on a job since they were found to hold it."""
        if not isinstance(error, JobHeld):
            return False
        before, self._last_seqs[job_id] = self._last_seqs.get(job_id), error.last_seq
        return before is not None and error.last_seq > before

    @asynccontextmanager
    async def _counted(self, job_id: str, deadline: asyncio.Timeout) -> AsyncIterator[None]:
        """Forget the deadline of a lane before it ends: none that is over can be moved."""
        try:
            yield
        finally:
            if self._held.get(job_id) is deadline:
                del self._held[job_id]

    def _hold(self, job_id: str, deadline: asyncio.Timeout) -> None:
        """Count the lane of a job among those that hold commands, unless its end for that is near."""
        if deadline.when() is None:
            self._held.setdefault(job_id, deadline)
            self._make_room()

    def _make_room(self) -> None:
        held = sum(map(self.waiting, self._held))
        while held > self._most_held and len(self._held) > 1:  # a job alone may only be a busy one
            job_id, deadline = next(iter(self._held.items()))
            held -= self.waiting(job_id)
            del self._held[job_id]
            deadline.reschedule(asyncio.get_running_loop().time() + self._grace_s)

    async def _one_by_one(self, job_id: str, some: Sequence[Admitted]) -> Sequence[Answer] | None:
        found: list[Answer] = []
        for one in some:
            answers = await self._decided(job_id, [one])
            if answers is None:
                return None
            found += answers
        return found

    async def _may_be_over(self, error: BsoError) -> bool:
        return not isinstance(error, _OF_THE_JOB) and await self._blame() is None

    async def _tried(self, some: Sequence[Admitted], *, line: asyncio.Semaphore | None) -> list[Answer]:
        """Answers to the first commands; ``line``: of those that wait for a lock, None: it does not wait."""
        requests, job_id = [one.request for one in some], some[0].request.job_id
        if job_id in self._suspects:
            await self._suspect(job_id)
        if line is not None:
            async with line:
                return await self._decider.execute(requests)
        try:
            async with self._running:
                found = await self._decider.attempt(requests)
        except Conflict:
            await self._suspect(job_id)
            raise
        for one in found:
            if isinstance(one, Undecided) and not isinstance(one.cause, OutOfTime):
                raise one.cause
        return [one for one in takewhile(lambda one: isinstance(one, Answer), found) if isinstance(one, Answer)]

    async def _suspect(self, job_id: str) -> None:
        """Raise Conflict while others hold rows of the job's trials: deciding would wait for them for a second."""
        if await self._parking.locked([job_id]):
            self._suspects.add(job_id)
            raise Conflict(f"another transaction holds rows of trials of job {job_id}")
        self._suspects.discard(job_id)

    async def _give_up(self, job_id: str, error: BsoError) -> None:
        """Park the job, unless nothing at all can be recorded: then the intake is shut, and the broker keeps them."""
        obstacle = None if isinstance(error, _OF_THE_JOB) else await self._blame()
        if obstacle is None:
            try:
                await self._parking.park(job_id, error)
            except BsoError:  # somebody may hold that row, too
                obstacle = await self._blame()
        if obstacle is not None:
            await self._shut(obstacle)
            return
        await self._keep(self._items[job_id])

    async def _keep(self, items: list[Admitted]) -> None:
        while items:  # more may arrive meanwhile
            some = items[: self._batch_limit.most]
            await self._parking.keep(some)
            del items[: len(some)]
