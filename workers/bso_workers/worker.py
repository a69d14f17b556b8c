"""The worker: takes batches of commands, has them decided, has them answered."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.commands import FACTS, GiveJob, RegisterJob
from bso.domain.errors import BsoError
from bso.service.answers import Answer, Undecided
from bso.service.errors import Conflict, JobDamaged, JobHeld
from bso_broker.messages import Delivery
from bso_broker.ports import CommandSource
from bso_workers.admission import Admission, Admitted, Undecidable
from bso_workers.batch_limit import MOST_BATCHES, BatchLimit
from bso_workers.decider import Decider
from bso_workers.intake import Intake
from bso_workers.lanes import Lanes
from bso_workers.metrics import Metrics
from bso_workers.outbox import EventOutbox
from bso_workers.rates import Rates
from bso_workers.settlement import Settlement
from bso_workers.troubled_jobs import TroubledJobs

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_COSTLY_S = 0.003  # for one decision, on average: then none of the others waits for the job
_WEIGHT = 0.1  # of the last decision in that average: one that was interrupted does not make a job costly
_QUICK_S = 0.02  # a batch that takes longer waits for the database
_MOST_COSTS = 10_000
_HELD_S = 0.3  # so long jobs that other workers hold are tried together, again and again
_TRY_AGAIN_S = 0.003

_Harmed = dict[str, list[Admitted]]


@dataclass(slots=True, kw_only=True, eq=False)
class _UnderWay:
    """A job in a batch: how many of its commands are being decided, and those that have come for it since.

    ``held_since_s``: another worker has been found to hold it since then.
    """

    deciding: int = 0
    since: list[Admitted] = field(default_factory=list)
    held_since_s: float | None = None


class CommandWorker:
    """Batches of disjoint jobs are decided; answers, acknowledgements and events go out beside the next batch.

    One batch at a time, as long as the database is quick: what arrives meanwhile makes the next one larger. While one
    waits for the database, others begin. Jobs that other workers hold are tried again together, milliseconds later. A
    job that cannot go with the others goes through a lane of its own, and none of the others waits for it.

    Batches are filled round robin over the jobs. Of one job ``most_of_a_job`` commands at most are under way; others
    are declined, but for facts: their senders could not wait.

    A delivery is acknowledged only after its decision is recorded and its answer is on its way, so whatever breaks in
    between, it comes again, and gets the answer that is recorded.
    """

    def __init__(
        self,
        *,
        consumer: CommandSource,
        decider: Decider,
        admission: Admission,
        rates: Rates,
        settlement: Settlement,
        parking: TroubledJobs,
        intake: Intake,
        outbox: EventOutbox,
        metrics: Metrics,
        batch_limit: BatchLimit,
        most_of_a_job: int,
        park_limit_s: float,
    ) -> None:
        self._consumer = consumer
        self._decider = decider
        self._admission = admission
        self._rates = rates
        self._settlement = settlement
        self._parking = parking
        self._intake = intake
        self._outbox = outbox
        self._metrics = metrics
        self._batch_limit = batch_limit
        self._most_of_a_job = most_of_a_job
        self._park_limit_s = park_limit_s
        self._lanes = Lanes(
            decider=decider,
            parking=parking,
            settle=self.settle,
            blame=intake.obstacle,
            shut=intake.shut,
            hand_back=consumer.requeue,
            batch_limit=batch_limit,
            most_held=most_of_a_job,
        )
        intake.on_shut = self._abandon
        self._backlog: list[Admitted] = []  # taken from the consumer, and in no batch yet
        self._batches: dict[asyncio.Task[None], float] = {}  # being decided, each with when it began
        self._settling: dict[asyncio.Task[None], float] = {}  # the same of what is decided
        self._took_s = 0.0  # what deciding a batch took last
        self._tasks: asyncio.TaskGroup
        self._under_way: dict[str, _UnderWay] = {}
        self._held: list[str] = []  # jobs that other workers hold, to be tried again
        self._costs_s: OrderedDict[str, float] = OrderedDict()  # what deciding for a job takes

    def busy_for_s(self) -> float:
        """How long the oldest batch under way, settled or not decided yet, has been so [s]; 0 without one."""
        began_s = min((*self._batches.values(), *self._settling.values()), default=None)
        return 0.0 if began_s is None else asyncio.get_running_loop().time() - began_s

    def has_lane(self, job_id: str) -> bool:
        """Whether commands of a job go alone just now."""
        return job_id in self._lanes

    async def run(self) -> None:
        """Work until the consumer is drained or closed."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                while arrived := await self._consumer.next_batch():
                    self._backlog = self._admit(arrived)
                    while self._backlog:
                        self._begin()
                        await self._until_another_may_begin()
            await self._lanes.finished()
        finally:
            await self._lanes.close()

    async def _until_another_may_begin(self) -> None:
        """Until a batch has ended, or all take so long that they wait for the database, and there is room for more.

        Batches begin at even intervals then: else all would begin at once, and what comes next would wait for them.
        """
        is_full = len(self._batches) >= MOST_BATCHES
        if self._batches:
            timeout_s = None if is_full else max(_QUICK_S, self._took_s / MOST_BATCHES)
            await asyncio.wait([*self._batches], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    def _abandon(self) -> None:
        """Forget what is in no batch yet: it is back with the broker."""
        self._backlog = []
        for job_id in self._held:
            del self._under_way[job_id]
        self._held = []
        self._lanes.abandon()

    def _admit(self, arrived: Sequence[Delivery]) -> list[Admitted]:
        """The commands in what has arrived, one of each job in turn; the others are refused."""
        verdicts = [self._admission.admit(delivery) for delivery in arrived]
        refused = [verdict for verdict in verdicts if isinstance(verdict, Undecidable)]
        if refused:
            self._tasks.create_task(self._refuse(refused), name="refusals")
        for verdict in refused:  # they count: the commands of their login have to wait
            self._rates.passed_by(verdict)
        admitted = [verdict for verdict in verdicts if isinstance(verdict, Admitted)]
        fast = [(one, passed) for one in admitted if (passed := self._rates.passed_by(one)) is not None]
        if fast:
            settling = self._settlement.slow_down(fast, limit_s=self._park_limit_s)
            deliveries = [one.delivery for one, _ in fast]
            self._tasks.create_task(self._settle_apart(deliveries, settling), name="refusals")
            slowed = {id(one) for one, _ in fast}
            admitted = [one for one in admitted if id(one) not in slowed]
        return _in_turn(admitted)

    def _begin(self) -> None:
        """Sort the backlog, without a pause in between, and begin a batch: a job's commands stay in their order."""
        together: list[Admitted] = []
        new: dict[str, _UnderWay] = {}
        busy: list[Admitted] = []
        left: list[Admitted] = []
        for one in self._backlog:
            job_id = one.request.job_id
            under_way = self._under_way.get(job_id) or new.get(job_id)
            if self._has_its_share(job_id, under_way) and not isinstance(one.request.command, FACTS):
                busy.append(one)
            elif job_id in self._under_way:
                self._under_way[job_id].since.append(one)
            elif self._goes_alone(job_id):
                self._lanes.add({job_id: [one]})
            elif len(together) < self._batch_limit.now:
                together.append(one)
                new.setdefault(job_id, _UnderWay()).deciding += 1
            else:
                left.append(one)
        self._backlog = left
        self._under_way |= new
        if busy:
            self._tasks.create_task(self._decline(busy), name="refusals")
        for part in _parts(together):
            self._count(self._tasks.create_task(self._handle(part), name="batch"), self._batches)

    def _count(self, task: asyncio.Task[None], among: dict[asyncio.Task[None], float]) -> None:
        """Count a task among those under way until it ends."""
        among[task] = asyncio.get_running_loop().time()
        task.add_done_callback(lambda done: among.pop(done, None))

    def _has_its_share(self, job_id: str, under_way: _UnderWay | None) -> bool:
        here = 0 if under_way is None else under_way.deciding + len(under_way.since)
        return here + self._lanes.waiting(job_id) >= self._most_of_a_job

    async def _decline(self, busy: Sequence[Admitted]) -> None:
        for one in busy:
            await self._settle_apart([one.delivery], self._settlement.decline_busy(one))

    async def _refuse(self, refused: Sequence[Undecidable]) -> None:
        for verdict in refused:
            await self._settle_apart([verdict.delivery], self._settlement.refuse(verdict))

    async def _settle_apart(self, deliveries: Sequence[Delivery], settling: Awaitable[None]) -> None:
        try:
            await settling
        except Exception:  # noqa: BLE001  logged; it must not end the worker
            _log.exception("commands could not be answered: they come again", action="answer_broke")
            await self._consumer.requeue(deliveries)  # what is settled already stays so

    async def _handle(self, admitted: Sequence[Admitted]) -> None:
        own = {job_id: self._under_way[job_id] for job_id in by_job(admitted)}
        is_handed_back = False
        try:
            while admitted and not is_handed_back:
                for part in _parts(admitted):
                    if not await self._handle_commands(part):
                        is_handed_back = True  # and so was what has come since
                        break
                else:
                    admitted = self._what_has_come(own)
                    self._begin_again()
        except Exception:  # noqa: BLE001  logged; it must not end the worker
            _log.exception("a batch broke: its commands come again", action="batch_broke", commands=len(admitted))
            await self._consumer.requeue([one.delivery for one in admitted])  # decided ones are answered again
        finally:
            for job_id, job in own.items():
                if self._under_way.get(job_id) is job:
                    del self._under_way[job_id]
                    if job.since and not is_handed_back:
                        self._lanes.add({job_id: job.since})

    def _begin_again(self) -> None:
        """Note that a batch goes on with other commands: it hangs on nothing."""
        task = asyncio.current_task()
        if task in self._batches:
            self._batches[task] = asyncio.get_running_loop().time()

    def _release(self, admitted: Sequence[Admitted]) -> None:
        """Let another batch have these jobs, unless commands have come for them: their decisions are recorded."""
        for job_id in by_job(admitted):
            if job_id in self._under_way:
                self._under_way[job_id].held_since_s = None
                if not self._under_way[job_id].since:
                    del self._under_way[job_id]

    def _what_has_come(self, own: Mapping[str, _UnderWay]) -> list[Admitted]:
        """Commands that have come for these jobs since their batch began, but for those that go alone now."""
        still = {job_id: job for job_id, job in own.items() if self._under_way.get(job_id) is job}
        for job_id, job in still.items():
            job.deciding = 0
            if job.since and self._goes_alone(job_id):
                self._lanes.add({job_id: job.since})
                job.since = []
        found = _in_turn([one for job in still.values() for one in job.since])
        del found[max(self._batch_limit.now, sum(bool(job.since) for job in still.values())) :]
        for job_id, taken in by_job(found).items():
            still[job_id].deciding = len(taken)
            del still[job_id].since[: len(taken)]
        return found

    def _goes_alone(self, job_id: str) -> bool:
        return job_id in self._lanes or self._parking.knows(job_id) or self._costs_s.get(job_id, 0.0) > _COSTLY_S

    async def _handle_commands(self, admitted: Sequence[Admitted]) -> bool:
        """Decide and answer; False when the database is away and the intake has been shut."""
        requests = [one.request for one in admitted]
        self._metrics.batch_size.observe(len(requests))
        began_s = asyncio.get_running_loop().time()
        try:
            with self._metrics.decision_seconds.time():
                answers = await self._decider.attempt(requests)
        except Exception as error:  # noqa: BLE001  one job must not stop all others
            return await self._apart(admitted, error)
        self._batch_limit.succeeded()
        self._took_s = asyncio.get_running_loop().time() - began_s
        decided = [(one, answer) for one, answer in zip(admitted, answers, strict=True) if isinstance(answer, Answer)]
        self._release([one for one, _ in decided])
        both = zip(admitted, answers, strict=True)
        self._sort_undecided([(one, answer.cause) for one, answer in both if isinstance(answer, Undecided)])
        harmed, settled = self._noted([one for one, _ in decided], [answer for _, answer in decided])
        settling = self._settle_apart([one.delivery for one, _ in decided], self._settle(harmed, settled))
        self._count(self._tasks.create_task(settling, name="settling"), self._settling)
        return True

    def _sort_undecided(self, undecided: Sequence[tuple[Admitted, BsoError]]) -> None:
        """Let jobs that another worker holds be tried again, but for those that it has held for long, and others."""
        held = dict.fromkeys(one.request.job_id for one, cause in undecided if isinstance(cause, JobHeld))
        now_s = asyncio.get_running_loop().time()
        since_s = {
            job_id: self._under_way[job_id].held_since_s or now_s for job_id in held if job_id in self._under_way
        }
        again = {job_id: began_s for job_id, began_s in since_s.items() if now_s - began_s < _HELD_S}
        alone = by_job([one for one, _ in undecided if one.request.job_id not in again])
        self._lanes.add(alone)
        self._release([one for commands in alone.values() for one in commands])
        for job_id, commands in by_job([one for one, _ in undecided if one.request.job_id in again]).items():
            since = [*commands, *self._under_way[job_id].since]  # the batch that it was in handles it no more
            self._under_way[job_id] = _UnderWay(since=since, held_since_s=again[job_id])
        if again and not self._held:
            self._tasks.create_task(self._try_again(), name="held jobs")
        self._held += again

    async def _try_again(self) -> None:
        """Try all that others hold, in a batch of its own, a moment later: between two of theirs it is free."""
        await asyncio.sleep(_TRY_AGAIN_S)
        held, self._held = self._held, []
        own = {job_id: self._under_way[job_id] for job_id in held}
        found = self._what_has_come(own)
        for job_id in own.keys() - by_job(found).keys():  # it goes alone now
            del self._under_way[job_id]
        if (task := asyncio.current_task()) is not None:
            self._count(task, self._batches)
        await self._handle(found)

    async def _apart(self, admitted: Sequence[Admitted], error: Exception) -> bool:
        """Let each job go alone, unless nothing can be recorded at all: whose fault it is shows there.

        Where somebody holds rows of trials, only their jobs do, and the others go on together.
        """
        self._metrics.database_retries.inc()
        self._batch_limit.failed(error)
        locked = await self._parking.locked({*by_job(admitted)}) if isinstance(error, Conflict) else ()
        if locked:
            self._lanes.add(by_job([one for one in admitted if one.request.job_id in locked]), are_suspect=True)
            others = [one for one in admitted if one.request.job_id not in locked]
            return not others or await self._handle_commands(others)
        if not isinstance(error, Conflict):
            _log.warning(
                "a batch failed: its jobs go one by one",
                action="batch_failed",
                commands=len(admitted),
                reason=f"{type(error).__name__}: {error}",
            )
            obstacle = await self._intake.obstacle()
            if obstacle is not None:
                await self._intake.shut(obstacle)
                return False
        self._lanes.add(by_job(admitted))
        return True

    async def settle(self, admitted: Sequence[Admitted], answers: Sequence[Answer]) -> None:
        """Publish events, send answers, acknowledge; a job over which rules fail again and again is parked."""
        await self._settle(*self._noted(admitted, answers))

    def _noted(
        self, admitted: Sequence[Admitted], answers: Sequence[Answer]
    ) -> tuple[_Harmed, list[tuple[Admitted, Answer]]]:
        """Hand events over to be published, and note what jobs cost: commands of jobs that rules fail over, and others.

        At once, since the next batch of these jobs may begin.
        """
        harmed: _Harmed = {}
        settled: list[tuple[Admitted, Answer]] = []
        for one, answer in zip(admitted, answers, strict=True):
            self._outbox.put(answer.events)
            if answer.took_s or answer.events:
                cost_s = self._costs_s.pop(one.request.job_id, 0.0)
                self._costs_s[one.request.job_id] = cost_s + _WEIGHT * (answer.took_s - cost_s)
            if answer.poison is not None and self._parking.harms(one.request):
                harmed.setdefault(one.request.job_id, []).append(one)
            else:
                settled.append((one, answer))
        while len(self._costs_s) > _MOST_COSTS:
            self._costs_s.popitem(last=False)
        return harmed, settled

    async def _settle(self, harmed: _Harmed, settled: Sequence[tuple[Admitted, Answer]]) -> None:
        try:
            for job_id in harmed:
                await self._parking.park(job_id, JobDamaged("rules fail over commands of different types of this job"))
            await self._parking.works([one.request.job_id for one, answer in settled if answer.poison is None])
        except BsoError as error:
            _log.warning("parked jobs could not be recorded", action="parking_failed", reason=str(error))
        await self._settlement.answer([one for one, _ in settled], [answer for _, answer in settled])
        self._lanes.add(harmed)  # where they are kept, while others go on


def by_job(admitted: Sequence[Admitted]) -> dict[str, list[Admitted]]:
    """Commands by their jobs, in the order they came."""
    found: dict[str, list[Admitted]] = {}
    for one in admitted:
        found.setdefault(one.request.job_id, []).append(one)
    return found


def _in_turn(admitted: Sequence[Admitted]) -> list[Admitted]:
    """Commands of one job after another, one each, again and again; those of a job in their order."""
    turns = zip_longest(*by_job(admitted).values())
    return [one for turn in turns for one in turn if one is not None]


def _parts(admitted: Sequence[Admitted]) -> Sequence[Sequence[Admitted]]:
    """Jobs that are registered, and those that are not, or get an owner: who will own one may have to wait."""
    registering = {one.request.job_id for one in admitted if isinstance(one.request.command, RegisterJob | GiveJob)}
    parts = (
        [one for one in admitted if one.request.job_id not in registering],
        [one for one in admitted if one.request.job_id in registering],
    )
    return [part for part in parts if part]
