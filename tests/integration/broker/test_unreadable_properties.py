"""Messages whose AMQP properties RabbitMQ passes on and pamqp cannot read: they harm nobody else."""

import asyncio
import struct
from contextlib import AsyncExitStack

import aiormq
import pytest
from pamqp.commands import Basic

from bso_broker.dead_letters import DeadLetters
from bso_broker.rabbit import RabbitBroker
from bso_broker.topology import COMMAND_KEY, COMMANDS, DEAD_LETTER_EXCHANGE
from tests.contract.broker.stories import answer, dead_letter_count, several, started_caller, started_consumer
from tests.servers import PATIENCE_S, eventually_async

HEADERS, CORRELATION_ID, TIMESTAMP = 0x2000, 0x0400, 0x0040

unreadable = pytest.mark.parametrize(
    "properties",
    [
        pytest.param(struct.pack(">H", CORRELATION_ID) + b"\x02\xff\xfe", id="text that is not UTF-8"),
        pytest.param(struct.pack(">HI", HEADERS, 4) + b"\x01\xfft\x01", id="a header's name that is not UTF-8"),
        pytest.param(struct.pack(">HQ", TIMESTAMP, 2**63), id="a time after all times"),
    ],
)


class Verbatim(Basic.Properties):
    """Goes out as these bytes."""

    def __init__(self, encoded: bytes) -> None:
        super().__init__()
        self._encoded = encoded

    def marshal(self) -> bytes:
        return self._encoded


async def send(url: str, properties: bytes, *, exchange: str = COMMANDS) -> None:
    async with aiormq.connect(url) as connection:
        channel = await connection.channel()
        await channel.basic_publish(
            b"odd", exchange=exchange, routing_key=COMMAND_KEY, properties=Verbatim(properties), mandatory=True
        )


@unreadable
async def test_one_among_commands_is_set_aside_and_the_others_are_answered(
    broker: RabbitBroker, amqp_url: str, cleaning: AsyncExitStack, properties: bytes
) -> None:
    caller = await started_caller(broker, cleaning)
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(caller.call(b"%d a" % n, message_id=str(n), timeout_s=PATIENCE_S)) for n in range(5)]
        await send(amqp_url, properties)
        calls += [
            group.create_task(caller.call(b"%d a" % n, message_id=str(n), timeout_s=PATIENCE_S)) for n in range(5, 10)
        ]
        consumer = await started_consumer(broker, cleaning)
        deliveries = await several(consumer, 11)
        assert {delivery.delivery_count for delivery in deliveries} == {0}
        (odd,) = [delivery for delivery in deliveries if delivery.is_damaged]
        assert (odd.body, odd.user_id, odd.correlation_id, odd.headers) == (b"odd", None, None, {})
        await consumer.dead_letter(odd, reason="unreadable", sender=None)
        await answer(broker, consumer, [delivery for delivery in deliveries if delivery is not odd])
    assert [call.result() for call in calls] == [b"%d A" % n for n in range(10)]
    async with broker.dead_letters() as box:
        await eventually_async(lambda: holds_one(box))
        assert [(letter.body, letter.reason) for letter in await box.peek()] == [(b"odd", "unreadable")]


@unreadable
async def test_one_among_the_dead_letters_can_be_looked_at(
    broker: RabbitBroker, amqp_url: str, properties: bytes
) -> None:
    await send(amqp_url, properties, exchange=DEAD_LETTER_EXCHANGE)
    async with broker.dead_letters() as box:
        await eventually_async(lambda: holds_one(box))
        assert [(letter.body, letter.user_id) for letter in await box.peek()] == [(b"odd", None)]


async def holds_one(box: DeadLetters) -> bool:
    return await dead_letter_count(box) == 1
