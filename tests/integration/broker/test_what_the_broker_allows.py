"""What the broker lets each login do, over the definitions that are shipped: what docs/security.md says."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from aiormq.exceptions import ChannelAccessRefused, ChannelPreconditionFailed
from pamqp.commands import Basic

from bso_broker.addresses import event_pattern, new_event_queue, new_reply_queue
from bso_broker.topology import (
    COMMAND_KEY,
    COMMANDS,
    DEAD_LETTER_EXCHANGE,
    DEAD_LETTERS,
    EVENT_LOG,
    EVENTS,
    PARKED,
    PARKED_FOR_S,
    QUERY_KEY,
    REPLAY,
    TOPOLOGY,
    Arguments,
    Exchange,
)
from tests.integration.shipped import ShippedBroker, table_of_rights
from tools.private_servers import Management

Attempt = Callable[[AbstractChannel, str], Awaitable[object]]
"""Something that a login, whose name it gets, does on a channel."""

SOMEBODYS_QUEUE = new_reply_queue("somebody")
QUEUES = [queue.name for queue in TOPOLOGY.queues]


def publishing(exchange: str, key: str = "", *, user_id: str | None = None) -> Attempt:
    properties = Basic.Properties(user_id=user_id)
    return lambda channel, _: channel.basic_publish(b"", exchange=exchange, routing_key=key, properties=properties)


def sending(key: str) -> Attempt:
    return lambda channel, login: publishing(COMMANDS, key, user_id=login)(channel, login)


def subscribing(key: str, *, exchange: str = EVENTS) -> Attempt:
    async def subscribe(channel: AbstractChannel, login: str) -> None:
        queue = new_event_queue(login)
        await channel.queue_declare(queue, exclusive=True)
        await channel.queue_bind(queue, exchange, key)

    return subscribe


def reading(queue: str) -> Attempt:
    async def ignore(_: DeliveredMessage) -> None:
        return

    async def read(channel: AbstractChannel, _: str) -> None:
        await channel.basic_qos(prefetch_count=1)
        await channel.basic_consume(queue, ignore)

    return read


def declaring(queue: str, arguments: Arguments, *, passive: bool = False) -> Attempt:
    return lambda channel, _: channel.queue_declare(queue, durable=True, passive=passive, arguments=dict(arguments))


def emptying(queue: str) -> Attempt:
    return lambda channel, _: channel.queue_purge(queue)


def binding(queue: str) -> Attempt:
    return lambda channel, _: channel.queue_bind(queue, EVENTS, "*.*")


def deleting(queue: str) -> Attempt:
    return lambda channel, _: channel.queue_delete(queue)


def declaring_exchange(exchange: Exchange) -> Attempt:
    return lambda channel, _: channel.exchange_declare(
        exchange.name, exchange_type=exchange.type, durable=True, arguments=dict(exchange.arguments)
    )


def deleting_exchange(exchange: Exchange) -> Attempt:
    return lambda channel, _: channel.exchange_delete(exchange.name)


ATTEMPTS: Mapping[str, Sequence[Attempt]] = {
    "send commands and queries": [sending(COMMAND_KEY), sending(QUERY_KEY)],
    "send them without a `user_id`": [publishing(COMMANDS, COMMAND_KEY), publishing(COMMANDS, QUERY_KEY)],
    "send them with the `user_id` of another login": [publishing(COMMANDS, COMMAND_KEY, user_id="somebody")],
    "receive the commands of others": [subscribing(COMMAND_KEY, exchange=COMMANDS)],
    "have queues for its own replies and events": [
        lambda channel, login: channel.queue_declare(new_reply_queue(login), exclusive=True),
        lambda channel, login: channel.queue_declare(new_event_queue(login), exclusive=True),
    ],
    "declare, read, empty or delete those of another login": [
        declaring(new_reply_queue("somebody"), {}),
        reading(SOMEBODYS_QUEUE),
        emptying(SOMEBODYS_QUEUE),
        deleting(SOMEBODYS_QUEUE),
    ],
    "reply to another login": [publishing("", SOMEBODYS_QUEUE)],
    "declare any other queue": [declaring("mine", {})],
    "see how many messages wait in a queue of bso": [declaring(queue, {}, passive=True) for queue in QUEUES],
    "declare a queue of bso": [declaring(queue.name, queue.arguments) for queue in TOPOLOGY.queues],
    "read a queue of bso": [reading(queue) for queue in QUEUES],
    "empty a queue of bso": [emptying(queue) for queue in QUEUES if queue != EVENT_LOG],
    "bind a queue of bso": [binding(queue) for queue in QUEUES],
    "delete a queue of bso": [deleting(queue) for queue in QUEUES],
    "declare an exchange of bso": [declaring_exchange(exchange) for exchange in TOPOLOGY.exchanges],
    "delete an exchange of bso": [deleting_exchange(exchange) for exchange in TOPOLOGY.exchanges],
    "publish an event": [publishing(EVENTS, "trial_ended.vision-nightly")],
    "publish a replay, a dead letter, a parked command": [
        *(publishing(exchange) for exchange in (REPLAY, DEAD_LETTER_EXCHANGE, DEAD_LETTERS)),
        *(publishing(PARKED, queue) for queue in PARKED_FOR_S),
    ],
    "receive the live events of a job `vision-...`": [subscribing(event_pattern(job_id="vision-nightly"))],
    "receive those of another job": [subscribing(event_pattern(job_id="nightly"))],
    "receive those of all jobs (`*.*`)": [subscribing(event_pattern())],
    "receive those of all jobs (`#`)": [subscribing("#")],
    "receive replays": [subscribing(event_pattern(job_id="vision-nightly"), exchange=REPLAY)],
}
"""What a login does for each operation of the page. A `yes` means that all of it is allowed, a `no` that none is."""


DELETING = ("delete a queue of bso", "delete an exchange of bso")
BEFORE_4 = "before RabbitMQ 4"
"""The answer where RabbitMQ 3 allows what RabbitMQ 4 refuses."""


async def is_allowed(attempt: Attempt, connection: AbstractConnection, login: str) -> bool:
    try:
        await attempt(await connection.channel(), login)
    except ChannelAccessRefused:
        return False
    except ChannelPreconditionFailed as error:
        if "user_id" not in str(error):
            raise
        return False
    return True


async def tried(operation: str, shipped: ShippedBroker, login: str) -> str:
    """Whether the broker lets a login do an operation: yes, no, or which parts of it."""
    if operation in DELETING:
        await asyncio.to_thread(shipped.load)
    async with aiormq.connect(shipped.amqp_url) as connection:
        await (await connection.channel()).queue_declare(SOMEBODYS_QUEUE, durable=True)
    async with aiormq.connect(shipped.urls[login]) as connection:
        answers = [await is_allowed(attempt, connection, login) for attempt in ATTEMPTS[operation]]
    if operation in DELETING:  # RabbitMQ 4.3 forgets the topic permissions of an exchange that is deleted
        await asyncio.to_thread(shipped.load)
    return "yes" if all(answers) else str(answers) if any(answers) else "no"


async def test_the_broker_lets_each_login_do_what_the_page_says(
    amqp_url: str, rabbitmq_management: Management, tmp_path: Path
) -> None:
    shipped = await asyncio.to_thread(ShippedBroker.loaded, rabbitmq_management, amqp_url, tmp_path / "secrets")
    await asyncio.to_thread(shipped.add, "vision")
    version = rabbitmq_management.request("GET", "overview")["rabbitmq_version"]
    by_release = {BEFORE_4: "no" if int(version.split(".")[0]) >= 4 else "yes"}
    written = {
        operation: {login: by_release.get(answer, answer) for login, answer in answers.items()}
        for operation, answers in table_of_rights("## At the broker").items()
    }
    assert written.keys() == ATTEMPTS.keys()
    found = {
        operation: {login: await tried(operation, shipped, login.strip("`")) for login in answers}
        for operation, answers in written.items()
    }
    assert found == written
