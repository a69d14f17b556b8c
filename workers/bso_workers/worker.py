"""The worker: takes batches of commands, has them decided, has them answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.commands import Request
from bso.domain.errors import Misconfigured, Retryable
from bso.service.answers import Answer, poisoned
from bso.service.ports import Store
from bso_broker.messages import Delivery
from bso_broker.ports import CommandSource
from bso_workers.admission import Admission, Admitted, Refused
from bso_workers.answering import Answering
from bso_workers.deciding import Decider
from bso_workers.intake import Intake, sample_of
from bso_workers.metrics import Metrics
from bso_workers.outbox import Outbox

_log: FilteringBoundLogger = structlog.get_logger(__name__)


class CommandWorker:
    """One batch at a time: decide, answer, acknowledge; the events are published beside it.

    A delivery is acknowledged only after its decision is recorded and its answer is on its way, so whatever breaks in
    between, it comes again, and gets the answer that is recorded.
    """

    def __init__(
        self,
        *,
        consumer: CommandSource,
        decider: Decider,
        store: Store,
        admission: Admission,
        answering: Answering,
        intake: Intake,
        outbox: Outbox,
        metrics: Metrics,
    ) -> None:
        self._consumer = consumer
        self._decider = decider
        self._store = store
        self._admission = admission
        self._answering = answering
        self._intake = intake
        self._outbox = outbox
        self._metrics = metrics
        self._busy_since_s: float | None = None

    def busy_for_s(self) -> float:
        """How long the batch under way has been so [s]; 0 without one."""
        return 0.0 if self._busy_since_s is None else asyncio.get_running_loop().time() - self._busy_since_s

    async def run(self) -> None:
        """Work until the consumer is drained or closed."""
        while batch := await self._consumer.next_batch():
            self._busy_since_s = asyncio.get_running_loop().time()
            await self._handle(batch)
            self._busy_since_s = None

    async def _handle(self, batch: Sequence[Delivery]) -> None:
        verdicts = [self._admission.admit(delivery) for delivery in batch]
        admitted = [verdict for verdict in verdicts if isinstance(verdict, Admitted)]
        if admitted and not await self._handle_commands(admitted):
            return  # the refused ones were handed back, too
        for verdict in verdicts:
            if isinstance(verdict, Refused):
                await self._answering.refuse(verdict)

    async def _handle_commands(self, admitted: Sequence[Admitted]) -> bool:
        """Decide and answer; False when the database is away and the intake has been shut."""
        requests = [one.request for one in admitted]
        self._metrics.batch_size.observe(len(requests))
        try:
            with self._metrics.decision_seconds.time():
                answers = await self._decide(requests)
        except (Retryable, Misconfigured) as error:
            await self._intake.shut(error, sample=sample_of(requests))
            return False
        for answer in answers:
            self._outbox.put(answer.events)
        await self._answering.answer(admitted, answers)
        return True

    async def _decide(self, requests: Sequence[Request]) -> list[Answer]:
        try:
            return await self._decider.execute(requests)
        except (Retryable, Misconfigured):
            raise
        except Exception:  # noqa: BLE001  logged, and looked into
            _log.exception("a batch failed in an unforeseen way", action="batch_failed", commands=len(requests))
            return [await self._decide_alone(request) for request in requests]

    async def _decide_alone(self, request: Request) -> Answer:
        """Blame a command for an unforeseen error only if it fails alone while the database answers."""
        try:
            (answer,) = await self._decider.execute([request])
        except (Retryable, Misconfigured):
            raise
        except Exception as error:  # noqa: BLE001  one command must not stop all others
            await self._store.ping()
            return poisoned(request, f"{type(error).__name__}: {error}")
        return answer
