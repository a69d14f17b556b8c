"""A worker reduced to what a client sees of it: takes commands, decides them over memory, answers."""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from bso.domain.decide import Rules
from bso.domain.trial import Trial
from bso.schema.codec import decode_command, encode_reply
from bso.service.answers import Answer
from bso.service.engine import Engine
from bso.service.memory import InMemoryStore
from bso_broker.messages import Delivery, Reply
from bso_broker.rabbit import RabbitBroker
from bso_client.background import LoopThread
from tests.servers import PATIENCE_S

RULES = Rules()


class QueueWorker:
    """Works in a thread of this process, inside ``with``."""

    def __init__(self, amqp_url: str, rules: Rules = RULES) -> None:
        self._url = amqp_url
        self._store = InMemoryStore(lambda: datetime.now(UTC))
        self._engine = Engine(self._store, rules)
        self._thread = LoopThread()
        self._task: asyncio.Task[None] | None = None

    def trials(self, job_id: str = "job") -> Sequence[Trial]:
        """What is recorded of a job."""
        return asyncio.run(self._store.trials(job_id))

    def __enter__(self) -> Self:
        self._thread.run(self._start(), timeout_s=PATIENCE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.run(self._stop(), timeout_s=PATIENCE_S)
        self._thread.stop(timeout_s=PATIENCE_S)

    async def _start(self) -> None:
        ready = asyncio.Event()
        self._task = asyncio.create_task(self._work(ready))
        await ready.wait()

    async def _stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _work(self, ready: asyncio.Event) -> None:
        async with RabbitBroker(self._url) as broker:
            consumer, replies = broker.command_consumer(), broker.reply_publisher()
            await consumer.start()
            try:
                await consumer.wait_until_ready()
                ready.set()
                while True:
                    deliveries = await consumer.next_batch()
                    requests = [decode_command(delivery.body, user=delivery.user_id) for delivery in deliveries]
                    answers = await self._engine.execute(requests)
                    await replies.reply_batch(list(map(_reply, deliveries, answers)))
                    await consumer.ack(deliveries)
            finally:
                await consumer.close()


def _reply(delivery: Delivery, answer: Answer) -> Reply:
    command_id, job_id = answer.request.command_id, answer.request.job_id
    body = encode_reply(answer.reply, command_id=command_id, job_id=job_id)
    return Reply(reply_to=str(delivery.reply_to), body=body, correlation_id=command_id, user_id=delivery.user_id)
