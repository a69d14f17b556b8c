"""What every broker promises about commands that no worker can handle."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from bso.schema.envelope import MAX_MESSAGE_BYTES
from bso_broker.dead_letters import sender_of
from bso_broker.topology import DELIVERY_LIMIT
from tests.contract.broker.stories import answer, batch, dead_letter_count, one, started_consumer
from tests.fakes.memory_broker import Broker, CommandSource, DeadLetterBox
from tests.servers import eventually_async

Ask = Callable[..., asyncio.Task[bytes]]


async def set_one_aside(consumer: CommandSource, ask: Ask, *, message_id: str = "1") -> asyncio.Task[bytes]:
    call = ask(b"poison", message_id=message_id)
    await consumer.dead_letter(await one(consumer), reason="not JSON", sender="alice")
    return call


async def holds(box: DeadLetterBox, count: int) -> None:
    async def reached() -> bool:
        return await dead_letter_count(box) == count

    await eventually_async(reached)


async def test_headers_that_can_be_read_but_not_sent_do_not_keep_a_command_from_being_set_aside(
    broker: Broker, consumer: CommandSource, ask: Ask
) -> None:
    ask(b"poison", message_id="1")
    odd = replace(await one(consumer), headers={"bytes": b"\xff", "double": 1e300, "plain": "text"})
    await consumer.dead_letter(odd, reason="not JSON", sender="alice")
    async with broker.dead_letters() as box:
        await holds(box, 1)
        (letter,) = await box.peek()
    assert (letter.body, letter.reason, letter.user_id) == (b"poison", "not JSON", "alice")


async def test_headers_as_large_as_a_frame_end_no_connection(broker: Broker, consumer: CommandSource, ask: Ask) -> None:
    ask(b"poison", message_id="1")
    large = replace(await one(consumer), headers={"small": "kept", "large": "x" * 130_000, "last": "kept"})
    await consumer.dead_letter(large, reason="not JSON", sender="alice")
    async with broker.dead_letters() as box:
        await holds(box, 1)
        (letter,) = await box.peek()
    assert (letter.body, letter.reason, letter.user_id) == (b"poison", "not JSON", "alice")


async def test_poison_lies_among_the_dead_letters_with_its_reason_and_sender(
    broker: Broker, consumer: CommandSource, ask: Ask
) -> None:
    await set_one_aside(consumer, ask)
    async with broker.dead_letters() as box:
        await holds(box, 1)
        for _ in range(2):
            (letter,) = await box.peek()
            assert (letter.body, letter.message_id) == (b"poison", "1")
            assert (letter.reason, letter.user_id) == ("not JSON", "alice")
            assert letter.died_at is not None
            assert abs(datetime.now(UTC) - letter.died_at) < timedelta(hours=1)
    assert await consumer.ready_messages() == 0


async def test_a_command_that_kills_its_workers_dies_with_that_reason(
    broker: Broker, ask: Ask, cleaning: AsyncExitStack
) -> None:
    ask(b"kills workers", message_id="1")
    for count in range(DELIVERY_LIMIT + 1):
        consumer = await started_consumer(broker, cleaning)
        delivery = await one(consumer)
        assert delivery.redelivered == (count > 0)
        await consumer.close()
    async with broker.dead_letters() as box:
        await holds(box, 1)
        (letter,) = await box.peek()
        assert (letter.reason, letter.user_id, letter.message_id) == ("delivery_limit", "guest", "1")
        assert letter.died_at is not None


async def test_a_command_that_was_parked_and_kills_its_workers_dies_with_that_reason(
    broker: Broker, consumer: CommandSource, ask: Ask, cleaning: AsyncExitStack
) -> None:
    ask(b"kills workers", message_id="1")
    await consumer.park(await one(consumer), sender="alice", pause_s=1.0)
    await consumer.close()
    for _ in range(DELIVERY_LIMIT + 1):
        victim = await started_consumer(broker, cleaning)
        assert (await one(victim)).parked_s
        await victim.close()
    async with broker.dead_letters() as box:
        await holds(box, 1)
        (letter,) = await box.peek()
        assert (letter.reason, letter.message_id) == ("delivery_limit", "1")


async def test_a_requeued_dead_letter_comes_again_in_the_name_of_its_sender(
    broker: Broker, consumer: CommandSource, ask: Ask
) -> None:
    call = await set_one_aside(consumer, ask)
    async with broker.dead_letters() as box:
        await holds(box, 1)
        assert await box.requeue() == 1
        delivery = await one(consumer)
        assert delivery.user_id == "guest"  # the operator
        assert sender_of(delivery, operators={"guest"}) == "alice"
        assert sender_of(delivery) == "guest"
        assert await dead_letter_count(box) == 0
    await answer(broker, consumer, [delivery])
    assert await call == b"POISON"


async def test_only_the_wanted_dead_letters_are_requeued(broker: Broker, consumer: CommandSource, ask: Ask) -> None:
    await set_one_aside(consumer, ask, message_id="1")
    await set_one_aside(consumer, ask, message_id="2")
    async with broker.dead_letters() as box:
        await holds(box, 2)
        assert await box.requeue(["2"]) == 1
        assert (await one(consumer)).message_id == "2"
        assert [letter.message_id for letter in await box.peek()] == ["1"]


async def test_a_purge_deletes_all_and_says_how_many(broker: Broker, consumer: CommandSource, ask: Ask) -> None:
    await set_one_aside(consumer, ask)
    async with broker.dead_letters() as box:
        await holds(box, 1)
        assert await box.purge() == 1
        assert await box.peek() == ()


async def test_setting_aside_one_of_a_batch_leaves_the_others_unsettled(
    broker: Broker, consumer: CommandSource, ask: Ask
) -> None:
    good, poison = ask(b"good", message_id="1"), ask(b"poison", message_id="2")
    deliveries = list(await batch(consumer))
    while len(deliveries) < 2:
        deliveries += await batch(consumer)
    await consumer.dead_letter(deliveries[1], reason="not JSON", sender=None)
    await answer(broker, consumer, deliveries[:1])
    assert await good == b"GOOD"
    assert not poison.done()


async def test_a_command_too_large_to_be_read_lies_there_without_its_body_and_is_not_sent_again(
    broker: Broker, consumer: CommandSource, ask: Ask
) -> None:
    too_large = MAX_MESSAGE_BYTES + 1
    ask(b"x" * too_large, message_id="large")
    await consumer.dead_letter(await one(consumer), reason="too large", sender="alice")
    await set_one_aside(consumer, ask)
    async with broker.dead_letters() as box:
        await holds(box, 2)
        assert await box.requeue() == 1
        assert (await one(consumer)).message_id == "1"
        (letter,) = await box.peek()
        assert (letter.message_id, letter.user_id, letter.reason) == ("large", "alice", "too large")
        assert (letter.body, letter.discarded_bytes) == (b"", too_large)


async def test_a_body_that_is_too_large_is_not_read_from_the_dead_letters_either(
    broker: Broker, ask: Ask, cleaning: AsyncExitStack
) -> None:
    too_large = MAX_MESSAGE_BYTES + 1
    ask(b"x" * too_large, message_id="1")
    for _ in range(DELIVERY_LIMIT + 1):
        consumer = await started_consumer(broker, cleaning)
        await one(consumer)
        await consumer.close()
    async with broker.dead_letters() as box:
        await holds(box, 1)
        (letter,) = await box.peek()
        assert (letter.reason, letter.body, letter.discarded_bytes) == ("delivery_limit", b"", too_large)
        assert await box.requeue() == 0
        await holds(box, 1)  # it comes back a moment after it was put back
