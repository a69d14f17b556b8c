"""The worker: takes batches of commands, has them decided, has them answered."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.commands import RegisterJob
from bso.domain.errors import BsoError
from bso.service.answers import Answer, Undecided
from bso.service.errors import Conflict, JobDamaged
from bso_broker.messages import Delivery
from bso_broker.ports import CommandSource
from bso_workers.admission import Admission, Admitted, Refused
from bso_workers.answering import Answering
from bso_workers.deciding import Decider
from bso_workers.intake import Intake
from bso_workers.lanes import Lanes
from bso_workers.metrics import Metrics
from bso_workers.outbox import Outbox
from bso_workers.troubled_jobs import TroubledJobs

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_COSTLY_S = 0.003  # for one decision: then none of the others waits for the job
_MOST_COSTS = 10_000


class CommandWorker:
    """One batch at a time: decide, answer, acknowledge; the events are published beside it.

    A job that cannot go with the others goes through a lane of its own, and none of the others waits for it.

    A delivery is acknowledged only after its decision is recorded and its answer is on its way, so whatever breaks in
    between, it comes again, and gets the answer that is recorded.
    """

    def __init__(
        self,
        *,
        consumer: CommandSource,
        decider: Decider,
        admission: Admission,
        answering: Answering,
        parking: TroubledJobs,
        intake: Intake,
        outbox: Outbox,
        metrics: Metrics,
        batch_limit: int,
    ) -> None:
        self._consumer = consumer
        self._decider = decider
        self._admission = admission
        self._answering = answering
        self._parking = parking
        self._intake = intake
        self._outbox = outbox
        self._metrics = metrics
        self._lanes = Lanes(
            decider=decider,
            parking=parking,
            settle=self.settle,
            blame=intake.obstacle,
            shut=intake.shut,
            hand_back=consumer.requeue,
            batch_limit=batch_limit,
        )
        intake.on_shut = self._lanes.abandon
        self._busy_since_s: float | None = None
        self._costs_s: OrderedDict[str, float] = OrderedDict()  # what deciding for a job took last

    def busy_for_s(self) -> float:
        """How long the batch under way has been so [s]; 0 without one."""
        return 0.0 if self._busy_since_s is None else asyncio.get_running_loop().time() - self._busy_since_s

    async def run(self) -> None:
        """Work until the consumer is drained or closed."""
        try:
            while batch := await self._consumer.next_batch():
                self._busy_since_s = asyncio.get_running_loop().time()
                await self._handle(batch)
                self._busy_since_s = None
            await self._lanes.finished()
        finally:
            await self._lanes.close()

    async def _handle(self, batch: Sequence[Delivery]) -> None:
        verdicts = [self._admission.admit(delivery) for delivery in batch]
        together, alone = self._sorted([verdict for verdict in verdicts if isinstance(verdict, Admitted)])
        self._lanes.add(alone)
        for part in _parts(together):
            if not await self._handle_commands(part):
                return  # the refused ones were handed back, too
        for verdict in verdicts:
            if isinstance(verdict, Refused):
                await self._answering.refuse(verdict)

    def _sorted(self, admitted: Sequence[Admitted]) -> tuple[list[Admitted], dict[str, list[Admitted]]]:
        """What is decided together, and by job what goes through a lane: the job has one, or is in trouble."""
        alone = {job_id: own for job_id, own in by_job(admitted).items() if self._goes_alone(job_id)}
        return [one for one in admitted if one.request.job_id not in alone], alone

    def _goes_alone(self, job_id: str) -> bool:
        return job_id in self._lanes or self._parking.knows(job_id) or self._costs_s.get(job_id, 0.0) > _COSTLY_S

    async def _handle_commands(self, admitted: Sequence[Admitted]) -> bool:
        """Decide and answer; False when the database is away and the intake has been shut."""
        requests = [one.request for one in admitted]
        self._metrics.batch_size.observe(len(requests))
        try:
            with self._metrics.decision_seconds.time():
                answers = await self._decider.attempt(requests)
        except Exception as error:  # noqa: BLE001  one job must not stop all others
            return await self._apart(admitted, error)
        decided = [(one, answer) for one, answer in zip(admitted, answers, strict=True) if isinstance(answer, Answer)]
        undecided = [one for one, answer in zip(admitted, answers, strict=True) if isinstance(answer, Undecided)]
        self._lanes.add(by_job(undecided))
        await self.settle([one for one, _ in decided], [answer for _, answer in decided])
        return True

    async def _apart(self, admitted: Sequence[Admitted], error: Exception) -> bool:
        """Let each job go alone, unless nothing can be recorded at all: whose fault it is shows there."""
        self._metrics.database_retries.inc()
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
        harmed: dict[str, list[Admitted]] = {}
        settled: list[tuple[Admitted, Answer]] = []
        for one, answer in zip(admitted, answers, strict=True):
            self._outbox.put(answer.events)
            if answer.took_s:
                self._costs_s[one.request.job_id] = answer.took_s
                self._costs_s.move_to_end(one.request.job_id)
            if answer.poison is not None and self._parking.harms(one.request):
                harmed.setdefault(one.request.job_id, []).append(one)
            else:
                settled.append((one, answer))
        while len(self._costs_s) > _MOST_COSTS:
            self._costs_s.popitem(last=False)
        try:
            for job_id in harmed:
                await self._parking.park(job_id, JobDamaged("rules fail over commands of different types of this job"))
            await self._parking.works([one.request.job_id for one, answer in settled if answer.poison is None])
        except BsoError as error:
            _log.warning("parked jobs could not be recorded", action="parking_failed", reason=str(error))
        await self._answering.answer([one for one, _ in settled], [answer for _, answer in settled])
        self._lanes.add(harmed)  # where they are kept, while others go on


def by_job(admitted: Sequence[Admitted]) -> dict[str, list[Admitted]]:
    """Commands by their jobs, in the order they came."""
    found: dict[str, list[Admitted]] = {}
    for one in admitted:
        found.setdefault(one.request.job_id, []).append(one)
    return found


def _parts(admitted: Sequence[Admitted]) -> Sequence[Sequence[Admitted]]:
    """Jobs that are registered, and those that are not: a registration may wait for another of the same job."""
    registering = {one.request.job_id for one in admitted if isinstance(one.request.command, RegisterJob)}
    parts = (
        [one for one in admitted if one.request.job_id not in registering],
        [one for one in admitted if one.request.job_id in registering],
    )
    return [part for part in parts if part]
