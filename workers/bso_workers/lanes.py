"""Lanes: a job that others should not wait for goes alone, beside the work: it is locked, harmed or costly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import takewhile

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.errors import BsoError
from bso.domain.policies import PolicyMissing
from bso.schema.errors import StateTooNew
from bso.service.answers import Answer, Undecided, poisoned
from bso.service.errors import Conflict, JobDamaged, OutOfTime
from bso_broker.messages import Delivery
from bso_workers.admission import Admitted
from bso_workers.decider import Decider
from bso_workers.troubled_jobs import TroubledJobs

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_AT_ONCE_S = 0.1  # so long a job that others hold is tried without waiting for its lock
_PAUSES_S = (0.002, 0.005, 0.01, 0.02)
_WAITING, _PROBING, _RUNNING = 2, 1, 2  # lanes that wait for a lock, try a parked job, run: each with a connection
_OF_THE_JOB = (Conflict, JobDamaged, PolicyMissing, StateTooNew)

Settle = Callable[[Sequence[Admitted], Sequence[Answer]], Awaitable[None]]


class Lanes:
    """At most one lane a job; while there is one, all commands of the job go through it, in their order.

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
        batch_limit: int,
    ) -> None:
        self._decider = decider
        self._parking = parking
        self._settle = settle
        self._blame = blame
        self._shut = shut
        self._hand_back = hand_back
        self._batch_limit = batch_limit
        self._waiting = asyncio.Semaphore(_WAITING)
        self._probing = asyncio.Semaphore(_PROBING)
        self._running = asyncio.Semaphore(_RUNNING)
        self._items: dict[str, list[Admitted]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __contains__(self, job_id: str) -> bool:
        """Whether a job has a lane."""
        return job_id in self._items

    def waiting(self, job_id: str) -> int:
        """How many commands are in the lane of a job."""
        return len(self._items.get(job_id, ()))

    def add(self, items: Mapping[str, Sequence[Admitted]]) -> None:
        """Let commands go through the lanes of their jobs."""
        for job_id, own in items.items():
            if job_id in self._items:
                self._items[job_id] += own
                continue
            self._items[job_id] = list(own)
            task = asyncio.create_task(self._run(job_id), name=f"lane of {job_id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

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
                some = items[: self._batch_limit]
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

    async def _decided(self, job_id: str, some: Sequence[Admitted]) -> Sequence[Answer] | None:
        """Answers to the first commands, one at least, however often that has to be tried; None: it was given up."""
        loop = asyncio.get_running_loop()
        began_s, tries = loop.time(), 0
        is_parked = waits = self._parking.knows(job_id)  # then there is one try, which may take its time
        is_blameless = False  # nothing keeps others from being recorded: what failed may have been over just now
        while True:
            try:
                return await self._tried(some, waits=waits, is_parked=is_parked)
            except BsoError as error:
                is_held = isinstance(error, Conflict)
                if waits and not is_held and not is_parked and not is_blameless and await self._may_be_over(error):
                    is_blameless = True
                elif is_parked or waits:
                    await self._give_up(job_id, error)
                    return None
                waits = not is_held or loop.time() - began_s > _AT_ONCE_S
            except Exception as error:  # noqa: BLE001  unforeseen: it may lie in one of them
                if len(some) > 1:
                    return await self._one_by_one(job_id, some)
                return [poisoned(some[0].request, f"{type(error).__name__}: {error}")]
            await asyncio.sleep(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
            tries += 1

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

    async def _tried(self, some: Sequence[Admitted], *, waits: bool, is_parked: bool) -> list[Answer]:
        requests = [one.request for one in some]
        if waits:
            async with self._probing if is_parked else self._waiting:
                return await self._decider.execute(requests)
        async with self._running:
            found = await self._decider.attempt(requests)
        for one in found:
            if isinstance(one, Undecided) and not isinstance(one.cause, OutOfTime):
                raise one.cause
        return [one for one in takewhile(lambda one: isinstance(one, Answer), found) if isinstance(one, Answer)]

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
            some = items[: self._batch_limit]
            await self._parking.keep(some)
            del items[: len(some)]
