"""Somebody deletes or changes exchanges, queues and bindings while a worker is connected: it creates them again."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import aiormq
import pytest
from aiormq.abc import AbstractChannel

from bso.storage import SqlStore
from bso_broker.connection import BrokerAddress
from bso_broker.rabbit import RabbitBroker
from bso_broker.topology import (
    COMMAND_KEY,
    COMMAND_QUEUE,
    COMMANDS,
    DEAD_LETTER_EXCHANGE,
    DEAD_LETTERS,
    EVENT_LOG,
    EVENTS,
    EXPIRED,
    PARKED,
    definitions,
)
from bso_workers.bootstrap import WorkerParts
from tests.integration.broker.test_topology import shared
from tests.integration.workers.fixtures import running_worker
from tests.integration.workers.recurrences import Queue, new_job, register
from tests.servers import TcpProxy, eventually_async
from tools.private_servers import UNMISTAKABLE, Management, ServerFailed

DELETIONS: dict[str, Callable[[AbstractChannel], Awaitable[object]]] = {
    "the exchange of commands": lambda channel: channel.exchange_delete(COMMANDS),
    "its binding": lambda channel: channel.queue_unbind(COMMAND_QUEUE, COMMANDS, COMMAND_KEY),
    "the queue of commands": lambda channel: channel.queue_delete(COMMAND_QUEUE),
    "a parking queue": lambda channel: channel.queue_delete("bso.parked.short"),
    "a binding of it": lambda channel: channel.queue_unbind("bso.parked.long", PARKED, "bso.parked.long"),
    "the exchange of events": lambda channel: channel.exchange_delete(EVENTS),
    "the log of events": lambda channel: channel.queue_delete(EVENT_LOG),
    "the exchange of dead letters": lambda channel: channel.exchange_delete(DEAD_LETTER_EXCHANGE),
}


@pytest.fixture
async def worker(amqp_url: str, store: SqlStore) -> AsyncIterator[WorkerParts]:
    async with (
        RabbitBroker(BrokerAddress(url=amqp_url, declare_every_s=0.3)) as broker,
        running_worker(broker, store) as parts,
    ):
        yield parts


@pytest.fixture
async def operator(amqp_url: str) -> AsyncIterator[AbstractChannel]:
    async with aiormq.connect(amqp_url) as connection:
        yield await connection.channel()


@pytest.fixture
def is_complete(amqp_url: str, rabbitmq_management: Management) -> Callable[[], Awaitable[bool]]:
    """Whether the broker has everything that it should have."""
    vhost = amqp_url.rpartition("/")[2]
    kinds = {
        "exchanges": ["name", "type", "arguments"],
        "queues": ["name", "arguments"],
        "bindings": ["source", "destination", "routing_key", "arguments"],
    }
    expected = definitions(vhost=vhost)

    async def look() -> bool:
        try:
            found = await asyncio.to_thread(rabbitmq_management.request, "GET", f"definitions/{vhost}")
        except ServerFailed:  # RabbitMQ 3.10 answers 500 while a queue is being made
            return False
        return all(set(shared(expected[kind], keys)) <= set(shared(found[kind], keys)) for kind, keys in kinds.items())

    return look


@pytest.mark.parametrize("deletion", DELETIONS)
async def test_a_worker_that_is_connected_creates_again(
    worker: WorkerParts,
    ask: Queue,
    operator: AbstractChannel,
    is_complete: Callable[[], Awaitable[bool]],
    deletion: str,
) -> None:
    await register(ask, new_job())
    assert await is_complete()
    await DELETIONS[deletion](operator)
    await eventually_async(is_complete, what=f"{deletion} again")
    await register(ask, new_job())
    await eventually_async(lambda: worker.readiness.is_ready, what="a ready worker")


async def test_what_was_created_with_other_properties_is_reported_until_it_is_mended_and_stops_nothing(
    worker: WorkerParts,
    ask: Queue,
    operator: AbstractChannel,
    is_complete: Callable[[], Awaitable[bool]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    await register(ask, new_job())
    connected_since = worker.consumer.readiness.since_s
    with caplog.at_level(logging.WARNING, "bso_broker"):
        await operator.queue_delete(EXPIRED)
        await operator.queue_declare(EXPIRED, durable=True)
        await eventually_async(lambda: "other properties" in worker.readiness.reasons().get("broker", ""))
        await operator.queue_unbind(DEAD_LETTERS, DEAD_LETTERS)
        await operator.queue_unbind(COMMAND_QUEUE, COMMANDS, COMMAND_KEY)
        await register(ask, new_job())
    assert f"queue '{EXPIRED}'" in worker.readiness.reasons()["broker"]
    assert "delete it" in worker.readiness.reasons()["broker"]
    (record,) = [record for record in caplog.records if record.name.startswith("bso_broker.consum")]
    assert "delete it" in record.getMessage()
    await operator.queue_delete(EXPIRED)
    await eventually_async(is_complete, what="everything again")
    await eventually_async(lambda: worker.readiness.is_ready, what="a ready worker")
    assert worker.consumer.readiness.since_s > connected_since


async def test_a_worker_that_the_new_queue_does_not_know_consumes_again(
    amqp_url: str,
    store: SqlStore,
    ask: Queue,
    operator: AbstractChannel,
    *,
    tcp_proxy: Callable[[str], TcpProxy],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As where RabbitMQ deletes the queue, somebody creates it again at once, and no consumer is ever cancelled."""
    proxy = tcp_proxy(amqp_url)
    proxy.replaces = (b"consumer_cancel_notify", b"consumer_cancel_notice")
    address = BrokerAddress(url=proxy.url, declare_every_s=0.3)
    async with RabbitBroker(address) as broker, running_worker(broker, store):
        await register(ask, new_job())
        await operator.queue_delete(COMMAND_QUEUE)
        await register(ask, new_job())
    assert "cancelled the consumer" not in caplog.text


async def test_a_worker_that_subscribes_again_all_the_time_loses_nothing(
    amqp_url: str, store: SqlStore, ask: Queue
) -> None:
    address = BrokerAddress(url=amqp_url, declare_every_s=0.01)
    async with RabbitBroker(address) as broker, running_worker(broker, store) as parts:
        connected_since = parts.consumer.readiness.since_s
        for _ in range(10):
            await asyncio.gather(*(register(ask, new_job()) for _ in range(5)))
            await asyncio.sleep(0.02)  # noqa: TID251  rests in between: only an idle worker subscribes again
        assert parts.readiness.is_ready
        assert parts.consumer.readiness.since_s == connected_since, "the session goes on"


async def test_a_login_that_may_not_declare_any_more_goes_on_consuming(
    amqp_url: str, store: SqlStore, ask: Queue, rabbitmq_management: Management, caplog: pytest.LogCaptureFixture
) -> None:
    login = rabbitmq_management.add_user(amqp_url, "declaring", UNMISTAKABLE, configure=".*", write=".*", read=".*")
    address = BrokerAddress(url=login, declare_every_s=0.3)
    async with RabbitBroker(address) as broker, running_worker(broker, store) as parts:
        with caplog.at_level(logging.INFO, "bso_broker"):
            await asyncio.to_thread(rabbitmq_management.permit, "declaring", amqp_url, configure="^$")
            await eventually_async(lambda: "declared by others" in caplog.text)
            connected_since = parts.consumer.readiness.since_s
        await register(ask, new_job())
        await asyncio.sleep(1.0)  # noqa: TID251  it subscribes again meanwhile, and declares nothing
        await register(ask, new_job())
        assert parts.readiness.is_ready
        assert parts.consumer.readiness.since_s == connected_since
