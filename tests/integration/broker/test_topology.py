"""What is declared is what is described, and what disagrees is a clear error."""

import asyncio
import json
from typing import cast
from urllib.parse import urlsplit

import aiormq
import pytest
from aiormq.abc import DeliveredMessage

from bso_broker.errors import TopologyMismatch
from bso_broker.messages import Event
from bso_broker.rabbit import RabbitBroker
from bso_broker.topology import COMMAND_QUEUE, DEAD_LETTER_EXCHANGE, DEAD_LETTERS, EVENT_LOG, EVENTS, definitions
from tests.servers import PATIENCE_S, eventually_async
from tools.private_servers import Management

Rows = list[dict[str, object]]
FIELDS = {
    "exchanges": ["name", "type", "durable", "auto_delete", "internal", "arguments"],
    "queues": ["name", "durable", "auto_delete", "arguments"],
    "bindings": ["source", "destination", "destination_type", "routing_key", "arguments"],
}


def shared(rows: Rows, keys: list[str]) -> list[str]:
    """Rows in a comparable form, with only the given fields, and without what RabbitMQ adds of its own.

    RabbitMQ 4.3 leaves fields out that are false.
    """
    own = [row for row in rows if row.get("source", "-") != ""]
    return sorted(json.dumps({k: row.get(k, False) for k in keys}, sort_keys=True) for row in own)


async def exported(management: Management, amqp_url: str) -> dict[str, Rows]:
    """What the virtual host of an address has declared."""
    vhost = urlsplit(amqp_url).path.removeprefix("/")
    found: dict[str, Rows] = await asyncio.to_thread(management.request, "GET", f"definitions/{vhost}")
    return {kind: found[kind] for kind in FIELDS}


async def test_declaring_again_changes_nothing(
    broker: RabbitBroker, amqp_url: str, rabbitmq_management: Management
) -> None:
    before = await exported(rabbitmq_management, amqp_url)
    await broker.declare()
    assert await exported(rabbitmq_management, amqp_url) == before


async def test_the_definitions_are_what_a_broker_exports_after_declaring(
    broker: RabbitBroker, amqp_url: str, rabbitmq_management: Management
) -> None:
    found = await exported(rabbitmq_management, amqp_url)
    expected = definitions(vhost=urlsplit(amqp_url).path.removeprefix("/"))
    for kind, fields in FIELDS.items():
        assert shared(found[kind], fields) == shared(expected[kind], fields)


async def test_imported_definitions_satisfy_declare(amqp_url: str, rabbitmq_management: Management) -> None:
    vhost = urlsplit(amqp_url).path.removeprefix("/")
    await asyncio.to_thread(rabbitmq_management.request, "POST", "definitions", definitions(vhost=vhost))
    before = await exported(rabbitmq_management, amqp_url)
    await RabbitBroker(amqp_url).declare()
    assert await exported(rabbitmq_management, amqp_url) == before


async def test_the_queue_of_commands_may_be_a_classic_one(amqp_url: str, rabbitmq_management: Management) -> None:
    await RabbitBroker(f"{amqp_url}?command_queue=classic").declare()
    found = await exported(rabbitmq_management, amqp_url)
    expected = definitions(vhost=urlsplit(amqp_url).path.removeprefix("/"), command_queue="classic")
    for kind, fields in FIELDS.items():
        assert shared(found[kind], fields) == shared(expected[kind], fields)


@pytest.mark.parametrize(("there", "asked"), [("quorum", "classic"), ("classic", "quorum")])
async def test_a_queue_of_commands_of_another_type_is_named_with_what_to_do(
    amqp_url: str, there: str, asked: str
) -> None:
    await RabbitBroker(f"{amqp_url}?command_queue={there}").declare()
    with pytest.raises(TopologyMismatch, match=rf"'bso\.inbox'.*if it is a {there} queue.*command_queue={there}"):
        await RabbitBroker(f"{amqp_url}?command_queue={asked}").declare()


async def test_a_queue_with_other_properties_is_named_with_what_to_do(amqp_url: str) -> None:
    async with aiormq.connect(amqp_url) as connection:
        channel = await connection.channel()
        await channel.queue_declare(COMMAND_QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
    with pytest.raises(TopologyMismatch, match=r"queue 'bso\.inbox' exists with other properties.*[Dd]elete"):
        await RabbitBroker(amqp_url).declare()


async def test_of_an_exchange_with_other_properties_it_says_how_exchanges_are_deleted(amqp_url: str) -> None:
    async with aiormq.connect(amqp_url) as connection:
        channel = await connection.channel()
        await channel.exchange_declare(EVENTS, exchange_type="direct", durable=True)
    with pytest.raises(TopologyMismatch, match=r"exchange 'bso\.events' exists .* Delete it .rabbitmqadmin") as refused:
        await RabbitBroker(amqp_url).declare()
    assert "delete_queue" not in str(refused.value)


async def test_a_consumer_that_cannot_declare_says_why_it_is_not_ready(amqp_url: str) -> None:
    async with aiormq.connect(amqp_url) as connection, RabbitBroker(amqp_url) as broker:
        channel = await connection.channel()
        await channel.queue_declare(DEAD_LETTERS, durable=True, arguments={"x-queue-type": "quorum"})
        consumer = broker.command_consumer()
        await consumer.start()
        try:
            await eventually_async(lambda: "other properties" in consumer.readiness.reason)
            assert not consumer.readiness.ready
            await channel.queue_delete(DEAD_LETTERS)
            await eventually_async(lambda: consumer.readiness.ready)
        finally:
            await consumer.close()


async def test_events_are_kept_in_the_stream(broker: RabbitBroker, amqp_url: str) -> None:
    event = Event(routing_key="trial_started.job", body=b"body", message_id="1")
    await broker.event_publisher().publish_batch([event])
    arrived: asyncio.Queue[DeliveredMessage] = asyncio.Queue()
    async with aiormq.connect(amqp_url) as connection:
        channel = await connection.channel()
        await channel.basic_qos(prefetch_count=10)
        await channel.basic_consume(EVENT_LOG, arrived.put, arguments={"x-stream-offset": "first"})
        async with asyncio.timeout(PATIENCE_S):
            message = await arrived.get()
        assert (message.body, message.routing_key) == (b"body", "trial_started.job")


@pytest.mark.slow
async def test_dead_letters_do_not_fill_the_disk_and_of_too_many_the_oldest_go(
    broker: RabbitBroker, amqp_url: str, rabbitmq_management: Management
) -> None:
    """A queue that refused more would keep workers from getting rid of what they cannot handle."""
    vhost = urlsplit(amqp_url).path.removeprefix("/")
    (queue,) = (one for one in definitions(vhost=vhost)["queues"] if one["name"] == DEAD_LETTERS)
    assert {"x-max-length", "x-max-length-bytes"} <= cast(dict[str, object], queue["arguments"]).keys()
    policy = {"pattern": f"^{DEAD_LETTERS}$", "definition": {"max-length": 3}, "apply-to": "queues"}
    await asyncio.to_thread(rabbitmq_management.request, "PUT", f"operator-policies/{vhost}/few", policy)

    async def applied() -> object:
        found = await asyncio.to_thread(rabbitmq_management.request, "GET", f"queues/{vhost}/{DEAD_LETTERS}")
        return found.get("operator_policy")

    await eventually_async(applied, what="a limit of 3")
    async with aiormq.connect(amqp_url) as connection, broker.dead_letters() as box:
        channel = await connection.channel(publisher_confirms=True)
        for number in range(5):
            await channel.basic_publish(b"%d" % number, exchange=DEAD_LETTER_EXCHANGE, mandatory=True)
        assert [letter.body for letter in await box.peek()] == [b"2", b"3", b"4"]
