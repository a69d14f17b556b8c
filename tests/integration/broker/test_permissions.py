"""Logins with the permissions of bso_broker.topology can do their part, and name nobody else as the sender."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiormq
import pytest
from aiormq.exceptions import ChannelLockedResource
from pamqp.commands import Basic

from bso_broker.addresses import event_pattern, new_reply_queue
from bso_broker.errors import ForgedReplyAddress
from bso_broker.messages import Event, Reply
from bso_broker.rabbit import RabbitBroker
from bso_broker.topology import COMMAND_KEY, COMMANDS, EVENTS, client_permissions, worker_permissions
from tests.contract.broker.stories import batch, started_caller, started_consumer, started_subscriber
from tests.integration.broker.test_broker_failures import working
from tests.servers import PATIENCE_S, eventually_async
from tools.private_servers import UNMISTAKABLE, Management


@dataclass(frozen=True, kw_only=True)
class Logins:
    alice: str  # the URL of a client whose jobs begin with "alice."
    bob: str
    worker: str


@pytest.fixture
async def logins(amqp_url: str, rabbitmq_management: Management) -> Logins:
    await RabbitBroker(amqp_url).declare()  # RabbitMQ 4.3 takes topic permissions for exchanges that exist
    return await asyncio.to_thread(permitted, amqp_url, rabbitmq_management)


def permitted(amqp_url: str, rabbitmq_management: Management) -> Logins:
    def client(name: str) -> str:
        granted = client_permissions(name, job_id_prefix=f"{name}.")
        url = rabbitmq_management.add_user(
            amqp_url, name, UNMISTAKABLE, configure=granted.configure, write=granted.write, read=granted.read
        )
        rabbitmq_management.permit_topics(
            name, amqp_url, exchange=EVENTS, write=granted.topic_write, read=granted.topic_read
        )
        return url

    all_of_it = worker_permissions()
    worker = rabbitmq_management.add_user(
        amqp_url, "worker", UNMISTAKABLE, configure=all_of_it.configure, write=all_of_it.write, read=all_of_it.read
    )
    return Logins(alice=client("alice"), bob=client("bob"), worker=worker)


async def test_clients_and_workers_can_do_their_part(logins: Logins, cleaning: AsyncExitStack) -> None:
    async with RabbitBroker(logins.worker) as workers, RabbitBroker(logins.alice) as alice:
        consumer = await started_consumer(workers, cleaning)
        caller = await started_caller(alice, cleaning)
        async with working(workers, consumer):
            assert await caller.call(b"body", message_id="1", timeout_s=PATIENCE_S) == b"BODY"
        subscriber = await started_subscriber(alice, cleaning, event_pattern(job_id="alice.mnist"))
        event = Event(routing_key="trial_started.alice%2Emnist", body=b"body", message_id="1")
        await workers.event_publisher().publish_batch([event])
        assert (await anext(aiter(subscriber))).body == b"body"


async def test_a_command_carries_the_login_that_the_broker_has_checked(
    logins: Logins, cleaning: AsyncExitStack
) -> None:
    async with RabbitBroker(logins.worker) as workers:
        consumer = await started_consumer(workers, cleaning)
        async with aiormq.connect(logins.bob) as connection:
            channel = await connection.channel()
            forged = Basic.Properties(user_id="alice", reply_to=new_reply_queue("alice"))
            with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed):
                await channel.basic_publish(b"body", exchange=COMMANDS, routing_key=COMMAND_KEY, properties=forged)
        async with aiormq.connect(logins.bob) as connection:
            channel = await connection.channel()
            forged = Basic.Properties(user_id="bob", reply_to=new_reply_queue("alice"))
            await channel.basic_publish(b"body", exchange=COMMANDS, routing_key=COMMAND_KEY, properties=forged)
        (delivery,) = await batch(consumer)
        assert delivery.user_id == "bob"
        reply = Reply(reply_to=delivery.reply_to or "", body=b"", correlation_id="1", user_id=delivery.user_id)
        with pytest.raises(ForgedReplyAddress):
            await workers.reply_publisher().reply_batch([reply])


async def test_a_reply_queue_is_its_connections_own(logins: Logins) -> None:
    queue = new_reply_queue("alice")
    async with aiormq.connect(logins.alice) as first, aiormq.connect(logins.alice) as second:
        await (await first.channel()).queue_declare(queue, exclusive=True)
        with pytest.raises(ChannelLockedResource):
            await (await second.channel()).basic_get(queue)


async def test_a_worker_that_may_not_declare_consumes_what_others_have_declared(
    broker: RabbitBroker, amqp_url: str, rabbitmq_management: Management, cleaning: AsyncExitStack
) -> None:
    limited = rabbitmq_management.add_user(
        amqp_url, "limited", UNMISTAKABLE, configure="^$", write=worker_permissions().write, read="^bso\\..*$"
    )
    async with RabbitBroker(limited) as workers:
        consumer = await started_consumer(workers, cleaning)
        await eventually_async(lambda: consumer.readiness.ready)
