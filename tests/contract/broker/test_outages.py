"""What every broker promises about going away and coming back."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from bso_broker.errors import BrokerUnreachable, CallTimeout, PublishFailed
from bso_broker.messages import Event, Reply
from tests.contract.broker.conftest import Outage
from tests.contract.broker.stories import DEADLINE_S, answer, batch, several, started_subscriber
from tests.contract.broker.test_events import received
from tests.fakes.memory_broker import Broker, CommandCaller, CommandSource
from tests.servers import eventually_async

Ask = Callable[..., asyncio.Task[bytes]]


async def ready_again(consumer: CommandSource) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await consumer.wait_until_ready()


async def test_a_call_under_way_is_sent_again_and_answered(
    broker: Broker, consumer: CommandSource, ask: Ask, outage: Outage
) -> None:
    call = ask(b"body", message_id="1")
    lost = await batch(consumer)
    outage.begin()
    await eventually_async(lambda: not consumer.readiness.ready)
    outage.end()
    await ready_again(consumer)
    again = await several(consumer, 2)
    assert {d.message_id for d in again} == {"1"}
    await consumer.ack(lost)
    await answer(broker, consumer, again)
    assert await call == b"BODY"


async def test_a_call_begun_while_the_broker_is_away_waits_for_it(
    broker: Broker, consumer: CommandSource, caller: CommandCaller, ask: Ask, outage: Outage
) -> None:
    outage.begin()
    await eventually_async(lambda: not caller.connected.is_set())
    call = ask(b"body", message_id="1")
    outage.end()
    await answer(broker, consumer, await batch(consumer))
    assert await call == b"BODY"


async def test_a_call_ends_at_its_deadline_though_the_broker_is_away(caller: CommandCaller, outage: Outage) -> None:
    outage.begin()
    with pytest.raises(CallTimeout):
        await caller.call(b"body", message_id="1", timeout_s=0.2)


async def test_a_consumer_says_that_it_is_not_ready_and_since_when(consumer: CommandSource, outage: Outage) -> None:
    before = consumer.readiness
    outage.begin()
    await eventually_async(lambda: not consumer.readiness.ready)
    assert "consuming" not in consumer.readiness.reason
    with pytest.raises(BrokerUnreachable):
        await consumer.ready_messages()
    outage.end()
    await ready_again(consumer)
    assert consumer.readiness.since_s > before.since_s


def event(body: bytes) -> Event:
    return Event(routing_key="kind.job", body=body, message_id=body.decode())


async def test_events_cannot_be_published_while_the_broker_is_away_but_afterwards(
    broker: Broker, outage: Outage, cleaning: AsyncExitStack
) -> None:
    subscriber = await started_subscriber(broker, cleaning)
    events = broker.event_publisher()
    await events.publish_batch([event(b"before")])
    assert [one.body for one in await received(subscriber, 1)] == [b"before"]
    outage.begin()
    await eventually_async(lambda: not subscriber.connected.is_set())
    with pytest.raises(PublishFailed):
        await events.publish_batch([event(b"meanwhile")], timeout_s=0.2)
    outage.end()
    async with asyncio.timeout(DEADLINE_S):
        await subscriber.connected.wait()
    await events.publish_batch([event(b"after")])
    assert [one.body for one in await received(subscriber, 1)] == [b"after"]
    assert subscriber.gaps == 1


async def test_replies_wait_for_a_broker_that_is_away_only_until_their_deadline(
    broker: Broker, consumer: CommandSource, outage: Outage
) -> None:
    outage.begin()
    await eventually_async(lambda: not consumer.readiness.ready)
    reply = Reply(reply_to=f"bso.reply.guest.{'0' * 32}", body=b"body", correlation_id="1", user_id="guest")
    with pytest.raises(PublishFailed):
        await broker.reply_publisher().reply_batch([reply], timeout_s=0.2)


async def test_what_cannot_be_set_aside_stays_unsettled(
    broker: Broker, consumer: CommandSource, ask: Ask, outage: Outage
) -> None:
    ask(b"poison", message_id="1")
    (delivery,) = await batch(consumer)
    outage.begin()
    with pytest.raises(PublishFailed):
        await consumer.dead_letter(delivery, reason="not JSON", sender=None, timeout_s=0.2)
    outage.end()
    await ready_again(consumer)
    assert {d.message_id for d in await batch(consumer)} == {"1"}
