"""What every broker promises about commands and their replies."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from bso.schema.envelope import MAX_ANSWER_BYTES, MAX_MESSAGE_BYTES
from bso_broker.addresses import is_reply_address, new_reply_queue
from bso_broker.dead_letters import sender_of
from bso_broker.errors import BrokerClosed, CallTimeout, ForgedReplyAddress, MessageTooLarge, NoCommandQueue
from bso_broker.messages import Delivery, Reply
from tests.contract.broker.stories import (
    DEADLINE_S,
    answer,
    batch,
    dead_letter_count,
    one,
    reply_to,
    several,
    started_consumer,
)
from tests.fakes.memory_broker import Broker, CommandCaller, CommandSource, DeadLetterBox
from tests.servers import eventually_async

Ask = Callable[..., asyncio.Task[bytes]]


async def test_a_call_returns_the_reply_to_it(broker: Broker, consumer: CommandSource, ask: Ask) -> None:
    first, second = ask(b"first", message_id="1"), ask(b"second", message_id="2")
    await answer(broker, consumer, await several(consumer, 2))
    assert (await first, await second) == (b"FIRST", b"SECOND")


async def test_a_delivery_says_who_asks_and_where_to_reply(consumer: CommandSource, ask: Ask) -> None:
    ask(b"body", message_id="an-id")
    delivery = await one(consumer)
    assert (delivery.body, delivery.message_id, delivery.correlation_id) == (b"body", "an-id", "an-id")
    assert delivery.user_id == "guest"
    assert is_reply_address(delivery.reply_to, "guest")
    assert not delivery.redelivered
    assert delivery.delivery_count == 0


async def test_a_call_without_a_queue_for_commands_says_that_no_worker_was_started(
    bare_broker: Broker, cleaning: AsyncExitStack
) -> None:
    client = bare_broker.rpc_client()
    await client.start()
    cleaning.push_async_callback(client.close)
    with pytest.raises(NoCommandQueue):
        await client.call(b"body", message_id="1", timeout_s=DEADLINE_S)


async def test_a_started_consumer_has_declared_what_it_needs(bare_broker: Broker, cleaning: AsyncExitStack) -> None:
    consumer = await started_consumer(bare_broker, cleaning)
    assert await consumer.ready_messages() == 0


async def test_a_call_without_a_reply_ends_at_its_deadline(caller: CommandCaller) -> None:
    with pytest.raises(CallTimeout, match="no reply within"):
        await caller.call(b"body", message_id="1", timeout_s=0.1)


async def test_a_call_can_be_repeated_after_its_deadline_and_late_replies_are_ignored(
    broker: Broker, consumer: CommandSource, caller: CommandCaller, ask: Ask
) -> None:
    deliveries = await taken_of_a_call_that_ended(caller, consumer)
    again = ask(b"late", message_id="1")
    while deliveries[-1].body != b"late":
        deliveries += await batch(consumer)
    *early, late = deliveries
    await answer(broker, consumer, [late])
    assert await again == b"LATE"
    await answer(broker, consumer, early)
    other = ask(b"other", message_id="2")
    await answer(broker, consumer, [await one(consumer)])
    assert await other == b"OTHER"


async def taken_of_a_call_that_ended(caller: CommandCaller, consumer: CommandSource) -> list[Delivery]:
    """What a worker got of a call before its deadline, however long a message takes on this machine."""
    taken = asyncio.create_task(batch(consumer))
    timeout_s = 0.1
    while not taken.done():
        with pytest.raises(CallTimeout):
            await caller.call(b"early", message_id="1", timeout_s=timeout_s)
        timeout_s *= 2
    return list(taken.result())


async def test_a_second_reply_is_ignored(broker: Broker, consumer: CommandSource, ask: Ask) -> None:
    call = ask(b"body", message_id="1")
    delivery = await one(consumer)
    await answer(broker, consumer, [delivery])
    await answer(broker, consumer, [delivery])
    assert await call == b"BODY"


async def test_two_calls_at_once_with_one_message_id_are_refused(caller: CommandCaller, ask: Ask) -> None:
    ask(b"body", message_id="1")
    await asyncio.sleep(0)  # noqa: TID251  the first call begins
    with pytest.raises(ValueError, match="under way"):
        await caller.call(b"body", message_id="1", timeout_s=1)


async def test_a_cancelled_call_leaves_nothing_behind(consumer: CommandSource, ask: Ask) -> None:
    call = ask(b"body", message_id="1")
    await one(consumer)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    again = ask(b"body", message_id="1")
    assert (await one(consumer)).message_id == "1"
    assert not again.done()


async def test_calls_on_a_closed_client_are_refused(caller: CommandCaller, consumer: CommandSource, ask: Ask) -> None:
    pending = ask(b"body", message_id="1")
    await one(consumer)
    await caller.close()
    with pytest.raises(BrokerClosed):
        await pending
    with pytest.raises(BrokerClosed):
        await caller.call(b"body", message_id="2", timeout_s=1)


async def test_a_batch_is_whatever_has_arrived_up_to_the_limit(
    broker: Broker, ask: Ask, cleaning: AsyncExitStack
) -> None:
    for number in range(10):
        ask(b"body", message_id=str(number))
    async with broker.dead_letters() as box:
        await eventually_async(lambda: _has_commands(box, 10))
    consumer = await started_consumer(broker, cleaning, batch_limit=4)
    first = await batch(consumer)
    assert 1 <= len(first) <= 4
    rest = await several(consumer, 10 - len(first))
    assert [d.message_id for d in (*first, *rest)] == [str(number) for number in range(10)]


async def _has_commands(box: DeadLetterBox, count: int) -> bool:
    return (await box.counts()).commands == count


async def test_no_more_than_the_prefetch_is_handed_over_unsettled(
    broker: Broker, ask: Ask, cleaning: AsyncExitStack
) -> None:
    consumer = await started_consumer(broker, cleaning, batch_limit=2, prefetch=2)
    for number in range(3):
        ask(b"body", message_id=str(number))
    taken = await several(consumer, 2)
    await eventually_async(lambda: _has_ready(consumer, 1))
    await consumer.ack(taken)
    assert (await one(consumer)).message_id == "2"


async def _has_ready(consumer: CommandSource, count: int) -> bool:
    return await consumer.ready_messages() == count


async def test_deliveries_can_be_settled_in_any_order_and_twice(
    broker: Broker, consumer: CommandSource, ask: Ask, cleaning: AsyncExitStack
) -> None:
    for number in range(4):
        ask(b"body", message_id=str(number))
    first, second, third, fourth = await several(consumer, 4)
    await consumer.ack([third])
    await consumer.requeue([second])
    again = await one(consumer)
    assert (again.message_id, again.redelivered) == ("1", True)
    await consumer.ack([first, fourth])
    await consumer.ack([first, third])
    await consumer.close()
    other = await started_consumer(broker, cleaning)
    assert (await one(other)).message_id == "1"
    await eventually_async(lambda: _has_ready(other, 0))


async def test_what_a_closed_consumer_had_is_delivered_to_others(
    broker: Broker, consumer: CommandSource, ask: Ask, cleaning: AsyncExitStack
) -> None:
    call = ask(b"body", message_id="1")
    await one(consumer)
    await consumer.close()
    other = await started_consumer(broker, cleaning)
    await answer(broker, other, await batch(other))
    assert await call == b"BODY"


async def test_acknowledging_after_the_consumer_was_closed_does_nothing(
    broker: Broker, consumer: CommandSource, ask: Ask, cleaning: AsyncExitStack
) -> None:
    ask(b"body", message_id="1")
    delivery = await one(consumer)
    await consumer.close()
    await consumer.ack([delivery])
    await consumer.requeue([delivery])
    again = await one(await started_consumer(broker, cleaning))
    assert (again.message_id, again.body, again.delivery_count) == ("1", b"body", 1)


async def test_a_consumer_that_is_resumed_while_it_still_pauses_consumes_again(
    broker: Broker, consumer: CommandSource, ask: Ask
) -> None:
    pausing = asyncio.create_task(consumer.pause("the database is away"))
    await asyncio.sleep(0)  # noqa: TID251  the pause has begun, and not ended
    await consumer.resume()
    await pausing
    async with asyncio.timeout(DEADLINE_S):
        await consumer.wait_until_ready()
    reply = ask(b"body", message_id="1")
    await answer(broker, consumer, [await one(consumer)])
    assert await reply == b"BODY"


async def test_a_pause_hands_everything_back_and_a_resumed_consumer_gets_it_again(
    broker: Broker, consumer: CommandSource, ask: Ask
) -> None:
    call = ask(b"body", message_id="1")
    stale = await one(consumer)
    await consumer.pause("the database is away")
    assert not consumer.readiness.ready
    assert consumer.readiness.reason == "the database is away"
    await consumer.ack([stale])
    await consumer.resume()
    async with asyncio.timeout(DEADLINE_S):
        await consumer.wait_until_ready()
    await consumer.ack([stale])
    delivery = await one(consumer)
    assert delivery.redelivered
    await answer(broker, consumer, [delivery])
    assert await call == b"BODY"


async def test_draining_finishes_what_was_taken_and_hands_back_what_was_not(
    broker: Broker, ask: Ask, cleaning: AsyncExitStack
) -> None:
    consumer = await started_consumer(broker, cleaning, batch_limit=1)
    taken, untaken = ask(b"taken", message_id="1"), ask(b"untaken", message_id="2")
    delivery = await one(consumer)
    draining = asyncio.create_task(consumer.drain(timeout_s=DEADLINE_S))
    await eventually_async(lambda: consumer.readiness.reason == "draining")
    assert await batch(consumer) == ()
    await answer(broker, consumer, [delivery])
    assert await draining
    assert await taken == b"TAKEN"
    other = await started_consumer(broker, cleaning)
    await answer(broker, other, await batch(other))
    assert await untaken == b"UNTAKEN"


async def test_draining_gives_up_at_its_deadline(consumer: CommandSource, ask: Ask) -> None:
    ask(b"body", message_id="1")
    await one(consumer)
    assert not await consumer.drain(timeout_s=0.1)


async def test_an_expired_command_is_dropped_and_counted(broker: Broker, consumer: CommandSource, ask: Ask) -> None:
    await consumer.pause("nobody works")
    call = ask(b"short-lived", message_id="1", expiration_s=0.1)
    async with broker.dead_letters() as box:
        await eventually_async(lambda: _has_expired(box, 1))
        assert await dead_letter_count(box) == 0
    assert not call.done()
    await consumer.resume()
    ask(b"later", message_id="2")
    assert (await one(consumer)).message_id == "2"


async def _has_expired(box: DeadLetterBox, count: int) -> bool:
    return (await box.counts()).expired == count


@pytest.mark.parametrize(
    "address",
    [
        "bso.commands",
        "bso.dead-letters",
        "",
        "amq.rabbitmq.reply-to",
        "bso.reply.guest.x",
        f"bso.reply.other.{'0' * 32}",
        f"bso.reply.guest.events.{'0' * 32}",
    ],
)
async def test_a_forged_reply_address_is_refused(broker: Broker, address: str) -> None:
    forged = Reply(reply_to=address, body=b"body", correlation_id="1", user_id="guest")
    with pytest.raises(ForgedReplyAddress, match="not a reply queue"):
        await broker.reply_publisher().reply_batch([forged])
    async with broker.dead_letters() as box:
        assert (await box.counts()).commands == 0


async def test_a_forged_address_in_a_batch_keeps_all_its_replies_back(
    broker: Broker, consumer: CommandSource, ask: Ask
) -> None:
    call = ask(b"body", message_id="1")
    delivery = await one(consumer)
    good = Reply(reply_to=delivery.reply_to or "", body=b"early", correlation_id="1", user_id="guest")
    forged = Reply(reply_to="bso.commands", body=b"", correlation_id="1", user_id="guest")
    with pytest.raises(ForgedReplyAddress):
        await broker.reply_publisher().reply_batch([good, forged])
    await answer(broker, consumer, [delivery])
    assert await call == b"BODY"


async def test_a_reply_to_a_client_that_is_gone_keeps_no_other_from_its_client(
    broker: Broker, consumer: CommandSource, ask: Ask
) -> None:
    call = ask(b"body", message_id="1")
    gone = Reply(reply_to=f"bso.reply.guest.{'0' * 32}", body=b"body", correlation_id="1", user_id="guest")
    await broker.reply_publisher().reply_batch([gone, reply_to(await one(consumer), b"here")])
    assert await call == b"here"


async def test_the_largest_command_gets_the_largest_reply(broker: Broker, consumer: CommandSource, ask: Ask) -> None:
    command, reply = b"x" * MAX_MESSAGE_BYTES, b"y" * MAX_ANSWER_BYTES
    call = ask(command, message_id="1")
    delivery = await one(consumer)
    assert (delivery.body, delivery.discarded_bytes) == (command, 0)
    await broker.reply_publisher().reply_batch([reply_to(delivery, reply)], timeout_s=DEADLINE_S)
    assert await call == reply


async def test_a_body_too_large_for_a_command_is_not_read_and_those_beside_it_are(
    broker: Broker, consumer: CommandSource, ask: Ask
) -> None:
    calls = [ask(body, message_id=str(n)) for n, body in enumerate([b"a", b"x" * (MAX_MESSAGE_BYTES + 1), b"b"])]
    first, large, last = await several(consumer, 3)
    assert (large.message_id, large.body, large.discarded_bytes) == ("1", b"", MAX_MESSAGE_BYTES + 1)
    assert is_reply_address(large.reply_to, large.user_id)
    await answer(broker, consumer, [first, large, last])
    assert [await call for call in calls] == [b"A", b"", b"B"]


async def test_a_message_larger_than_brokers_take_is_refused_before_it_is_sent(
    broker: Broker, caller: CommandCaller
) -> None:
    with pytest.raises(MessageTooLarge, match="4194304"):
        await caller.call(b"x" * (MAX_ANSWER_BYTES + 1), message_id="1", timeout_s=DEADLINE_S)
    too_large = Reply(
        reply_to=new_reply_queue("guest"), body=b"x" * (MAX_ANSWER_BYTES + 1), correlation_id="1", user_id="guest"
    )
    with pytest.raises(MessageTooLarge, match="4194304"):
        await broker.reply_publisher().reply_batch([too_large])


async def test_commands_that_many_tasks_acknowledge_at_once_are_settled_once(consumer: CommandSource, ask: Ask) -> None:
    async def ack_later(delivery: Delivery, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)  # noqa: TID251
        await consumer.ack([delivery])

    for at_once in range(8, 16):  # tasks that start while others wait for the connection to write
        for number in range(50):
            ask(b"body", message_id=f"{at_once}-{number}")
        deliveries = await several(consumer, 50)
        assert not any(delivery.redelivered for delivery in deliveries)
        await asyncio.gather(*(ack_later(delivery, number // at_once) for number, delivery in enumerate(deliveries)))


async def test_commands_parked_together_come_back_in_their_order(
    broker: Broker, consumer: CommandSource, ask: Ask
) -> None:
    for number in range(50):
        ask(b"later", message_id=str(number))
    deliveries = await several(consumer, 50)
    await asyncio.gather(*(consumer.park(delivery, sender="ann", pause_s=1.0) for delivery in deliveries))
    again = await several(consumer, 50)
    assert [delivery.message_id for delivery in again] == [str(number) for number in range(50)]
    assert {delivery.parked_s for delivery in again} == {5.0}


@pytest.mark.slow
async def test_a_parked_command_comes_back_as_its_senders(broker: Broker, consumer: CommandSource, ask: Ask) -> None:
    asked = ask(b"later", message_id="1")
    first = await one(consumer)
    await consumer.park(first, sender="ann", pause_s=1.0)
    again = await one(consumer)
    assert (again.body, again.message_id, again.correlation_id) == (b"later", "1", "1")
    assert (again.reply_to, sender_of(again), again.parked_s) == (first.reply_to, "ann", 5.0)
    assert again.delivery_count == 0
    await consumer.park(again, sender=None, pause_s=5.0)
    third = await one(consumer)
    assert (sender_of(third), third.parked_s) == (None, 10.0)
    await answer(broker, consumer, [third])
    assert await asked == b"LATER"
    async with broker.dead_letters() as box:
        assert await dead_letter_count(box) == 0
