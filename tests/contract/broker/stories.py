"""Steps that tell a test's story: clients that call, workers that answer."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from bso_broker.messages import Delivery, Reply
from tests.fakes.memory_broker import Broker, CommandCaller, CommandSource, DeadLetterBox, EventSource
from tests.servers import PATIENCE_S

DEADLINE_S = PATIENCE_S


async def started_caller(broker: Broker, cleaning: AsyncExitStack) -> CommandCaller:
    client = broker.rpc_client()
    await client.start()
    cleaning.push_async_callback(client.close)
    async with asyncio.timeout(DEADLINE_S):
        await client.connected.wait()
    return client


async def started_consumer(
    broker: Broker, cleaning: AsyncExitStack, *, batch_limit: int = 32, prefetch: int = 128
) -> CommandSource:
    consumer = broker.command_consumer(batch_limit=batch_limit, prefetch=prefetch)
    await consumer.start()
    cleaning.push_async_callback(consumer.close)
    async with asyncio.timeout(DEADLINE_S):
        await consumer.wait_until_ready()
    return consumer


async def started_subscriber(broker: Broker, cleaning: AsyncExitStack, *patterns: str) -> EventSource:
    subscriber = broker.event_subscriber(*patterns)
    await subscriber.start()
    cleaning.push_async_callback(subscriber.close)
    async with asyncio.timeout(DEADLINE_S):
        await subscriber.connected.wait()
    return subscriber


async def started_replay_subscriber(broker: Broker, cleaning: AsyncExitStack, *patterns: str) -> EventSource:
    subscriber = broker.replay_subscriber(*patterns)
    await subscriber.start()
    cleaning.push_async_callback(subscriber.close)
    async with asyncio.timeout(DEADLINE_S):
        await subscriber.connected.wait()
    return subscriber


async def cancelled(task: asyncio.Task[bytes]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


async def batch(consumer: CommandSource) -> tuple[Delivery, ...]:
    async with asyncio.timeout(DEADLINE_S):
        return await consumer.next_batch()


async def several(consumer: CommandSource, count: int) -> list[Delivery]:
    """Batches until there are so many deliveries."""
    deliveries: list[Delivery] = []
    while len(deliveries) < count:
        deliveries += await batch(consumer)
    return deliveries


async def one(consumer: CommandSource) -> Delivery:
    (delivery,) = await batch(consumer)
    return delivery


async def answer(broker: Broker, consumer: CommandSource, deliveries: Sequence[Delivery]) -> None:
    """Reply with the body in capitals, then acknowledge."""
    replies = [reply_to(delivery, delivery.body.upper()) for delivery in deliveries]
    await broker.reply_publisher().reply_batch(replies, timeout_s=DEADLINE_S)
    await consumer.ack(deliveries)


def reply_to(delivery: Delivery, body: bytes) -> Reply:
    return Reply(
        reply_to=delivery.reply_to or "",
        body=body,
        correlation_id=delivery.correlation_id or "",
        user_id=delivery.user_id,
        may_be_bundled=delivery.is_of_bundle,
    )


async def dead_letter_count(box: DeadLetterBox) -> int:
    return (await box.counts()).dead_letters
