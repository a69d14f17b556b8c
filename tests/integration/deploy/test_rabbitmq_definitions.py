"""RabbitMQ, started with the files of deploy/rabbitmq, has the queues and logins that workers and trainings need."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiormq
import pytest
from aiormq.exceptions import ChannelAccessRefused, ChannelPreconditionFailed

from bso.schema.envelope import MAX_ANSWER_BYTES
from bso_broker.addresses import new_reply_queue
from bso_broker.rabbit import RabbitBroker
from bso_broker.topology import COMMAND_QUEUE, COMMANDS, DEAD_LETTER_EXCHANGE
from tests.integration.deploy.shipped_servers import DEPLOY, AlsoPlainRabbitMQ, make_secrets
from tests.servers import eventually_async
from tools.private_servers import Management, ServerFailed


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_secrets(tmp_path_factory.mktemp("deploy") / "secrets")


@pytest.fixture(scope="module")
def rabbitmq(secrets: Path) -> Iterator[AlsoPlainRabbitMQ]:
    with AlsoPlainRabbitMQ(secrets) as server:
        yield server


async def test_workers_find_everything_declared_as_they_need_it(rabbitmq: AlsoPlainRabbitMQ) -> None:
    async with RabbitBroker(rabbitmq.login_url("worker")) as broker:
        await broker.declare()  # TopologyMismatch, if anything differed
    names = {queue["name"] for queue in rabbitmq.management.queues(rabbitmq.login_url("operator"))}
    assert COMMAND_QUEUE in names


async def test_a_training_may_send_commands_and_not_consume_them(rabbitmq: AlsoPlainRabbitMQ) -> None:
    async with aiormq.connect(rabbitmq.login_url("training")) as connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.basic_publish(b"not for a worker", exchange=COMMANDS, routing_key="command", mandatory=True)
        with pytest.raises(ChannelAccessRefused):
            await channel.basic_get(COMMAND_QUEUE)


async def test_a_message_larger_than_any_of_bso_is_refused_when_it_is_published(rabbitmq: AlsoPlainRabbitMQ) -> None:
    async with aiormq.connect(rabbitmq.login_url("training")) as connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.basic_publish(b"x" * MAX_ANSWER_BYTES, exchange=COMMANDS, routing_key="command", mandatory=True)
        with pytest.raises(ChannelPreconditionFailed, match="larger than"):
            await channel.basic_publish(b"x" * (MAX_ANSWER_BYTES + 1), exchange=COMMANDS, routing_key="command")


LIMITS = {"expires": 600_000, "max-length": 100_000, "max-length-bytes": 100_000_000}


@pytest.mark.parametrize(
    ("kind", "policy", "limits"),
    [
        ("classic", "bso-replies", LIMITS),
        ("quorum", "bso-replies", LIMITS),
        ("stream", "bso-replies-in-streams", {"max-length-bytes": 100_000_000}),
    ],
)
@pytest.mark.slow
async def test_what_a_training_declares_is_limited_whatever_it_asks_for(
    rabbitmq: AlsoPlainRabbitMQ, kind: str, policy: str, limits: dict[str, int]
) -> None:
    queue = new_reply_queue("bso-training")
    asked: dict[str, Any] = {"x-queue-type": kind, "x-max-length-bytes": 10**12}
    if kind != "stream":
        asked |= {"x-expires": 10**9, "x-max-length": 10**9}
    async with aiormq.connect(rabbitmq.login_url("training")) as connection:
        channel = await connection.channel()
        await channel.queue_declare(queue, durable=True, arguments=asked)
        await eventually_async(lambda: limits_of(rabbitmq, queue) == (policy, limits), what="limits of the queue")


def limits_of(rabbitmq: AlsoPlainRabbitMQ, queue: str) -> tuple[str | None, dict[str, int] | None]:
    """The operator policy of a queue, and what it makes of the arguments; None: it has none, or it is not known yet."""
    found = rabbitmq.management.request("GET", f"queues/bso/{queue}")
    return found.get("operator_policy"), found.get("effective_policy_definition")


async def test_queues_of_bso_itself_have_no_such_limit(rabbitmq: AlsoPlainRabbitMQ) -> None:
    async with RabbitBroker(rabbitmq.login_url("worker")) as broker:
        await broker.declare()
    queues = rabbitmq.management.request("GET", "queues/bso")
    own = [queue for queue in queues if not queue["name"].startswith("bso.reply.")]
    assert len(own) >= 5
    assert {queue.get("operator_policy") for queue in own} == {None}


async def test_a_training_declares_only_so_many_queues(rabbitmq: AlsoPlainRabbitMQ) -> None:
    management = rabbitmq.management
    [limits] = await asyncio.to_thread(management.request, "GET", "vhost-limits/bso")
    assert limits["value"] == {"max-queues": 30_000}
    path, there = "vhost-limits/bso/max-queues", len(await asyncio.to_thread(management.request, "GET", "queues/bso"))
    await asyncio.to_thread(management.request, "PUT", path, {"value": there})
    try:
        async with aiormq.connect(rabbitmq.login_url("training")) as connection:
            channel = await connection.channel()
            with pytest.raises(ChannelPreconditionFailed, match="queue limit"):
                await channel.queue_declare(new_reply_queue("bso-training"), exclusive=True)
    finally:
        await asyncio.to_thread(management.request, "PUT", path, {"value": 30_000})


def test_a_training_opens_only_so_many_connections(rabbitmq: AlsoPlainRabbitMQ) -> None:
    [limits] = rabbitmq.management.request("GET", "user-limits/bso-training")
    assert limits["value"] == {"max-connections": 10_000, "max-channels": 40_000}


async def test_an_operator_sees_the_dead_letters(rabbitmq: AlsoPlainRabbitMQ) -> None:
    async with RabbitBroker(rabbitmq.login_url("operator")) as broker, broker.dead_letters() as letters:
        assert (await letters.counts()).dead_letters == 0


async def test_an_operator_sends_dead_letters_again(rabbitmq: AlsoPlainRabbitMQ) -> None:
    async with aiormq.connect(rabbitmq.login_url("worker")) as connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.basic_publish(b"{", exchange=DEAD_LETTER_EXCHANGE, mandatory=True)
    command = (sys.executable, "-m", "bso_cli", "dead-letters", "requeue", "--all")
    done = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, "BSO_AMQP_URL": rabbitmq.login_url("operator")}, stdout=asyncio.subprocess.PIPE
    )
    said = (await done.communicate())[0].decode()
    assert (done.returncode, "1" in said) == (0, True), said


def test_nobody_may_come_in_as_guest(rabbitmq: AlsoPlainRabbitMQ) -> None:
    assert {user["name"] for user in rabbitmq.management.request("GET", "users")} == {
        "bso-worker",
        "bso-operator",
        "bso-training",
        "bso-gateway",
    }


def test_the_definitions_can_be_imported_into_a_running_broker(rabbitmq_management: Management, secrets: Path) -> None:
    try:
        for file in (DEPLOY / "rabbitmq/topology.json", secrets / "rabbitmq_logins.json"):
            rabbitmq_management.request("POST", "definitions", json.loads(file.read_text()))
        queues = rabbitmq_management.request("GET", "queues/bso")
        assert COMMAND_QUEUE in {queue["name"] for queue in queues}
    finally:
        _forget(rabbitmq_management)


def _forget(management: Management) -> None:
    for path in ("vhosts/bso", "users/bso-worker", "users/bso-operator", "users/bso-training", "users/bso-gateway"):
        try:
            management.request("DELETE", path)
        except ServerFailed:
            continue
