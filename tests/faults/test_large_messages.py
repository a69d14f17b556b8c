"""Somebody sends messages that are far too large: a worker neither keeps them in memory nor stops working."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bso_broker.rabbit import RabbitBroker
from bso_broker.topology import COMMAND_QUEUE
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.processes import WorkerProcess
from tests.integration.workers.raw import RawSender
from tests.integration.workers.recurrences import Queue, new_job, register
from tests.servers import eventually_async
from tools.private_servers import RabbitMQ

MESSAGES, BYTES = 100, 16_000_000
MOST_MEMORY = 300_000_000  # a worker that does nothing has about 100 MB


def peak_memory(worker: WorkerProcess) -> int:
    """The most memory [bytes] that the process has had at any time."""
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


@pytest.fixture
def rabbitmq(breakable_rabbitmq: RabbitMQ) -> Iterator[RabbitMQ]:
    yield breakable_rabbitmq
    may_use(breakable_rabbitmq, "2GB")


def may_use(server: RabbitMQ, memory: str) -> None:
    """How much it may use before it takes nothing from publishers any more."""
    server.control("set_vm_memory_high_watermark", "absolute", memory)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_hundred_messages_of_16_mb_that_a_worker_can_only_keep(
    rabbitmq: RabbitMQ, amqp_url: str, migrated_url: str, start_worker: StartWorker
) -> None:
    """The broker hands them all over, and has no memory for what the worker sets aside."""
    await RabbitBroker(amqp_url).declare()
    may_use(rabbitmq, "8GB")
    async with RawSender(amqp_url) as sender:
        sent = [await sender.send(b"x" * BYTES) for _ in range(MESSAGES)]
    may_use(rabbitmq, "1MB")
    worker = start_worker().started()
    # A blocked broker still takes the first that is set aside.
    await eventually_async(lambda: handed_over(rabbitmq, amqp_url) >= 0.9 * MESSAGES, what="messages handed over")
    may_use(rabbitmq, "8GB")
    async with RabbitBroker(amqp_url) as broker, Queue(broker=broker) as ask, broker.dead_letters() as box:
        await register(ask, new_job())

        async def all_set_aside() -> bool:
            return (await box.counts()).dead_letters >= MESSAGES

        await eventually_async(all_set_aside, what="dead letters")
        letters = await box.peek(limit=2 * MESSAGES)
    assert peak_memory(worker) < MOST_MEMORY
    assert {letter.message_id for letter in letters} == set(sent)
    assert {letter.reason.partition(":")[0] for letter in letters} == {"too_large"}
    assert {(letter.body, letter.discarded_bytes) for letter in letters} == {(b"", BYTES)}


def handed_over(server: RabbitMQ, url: str) -> int:
    """How many commands workers have, and have not settled."""
    (inbox,) = [queue for queue in server.management.queues(url) if queue["name"] == COMMAND_QUEUE]
    return int(inbox.get("messages_unacknowledged", 0))
