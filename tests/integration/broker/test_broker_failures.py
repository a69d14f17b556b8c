"""The broker is killed, frozen, cut off, or takes a queue away: calls are answered once, nothing is lost."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace

import aiormq
import pytest

from bso_broker.connection import BrokerAddress
from bso_broker.errors import BrokerClosed, CallTimeout, PublishFailed
from bso_broker.messages import Reply
from bso_broker.rabbit import RabbitBroker
from bso_broker.topology import COMMAND_QUEUE, COMMANDS
from tests.contract.broker.stories import answer, batch, started_caller, started_consumer
from tests.fakes.memory_broker import CommandSource
from tests.servers import PATIENCE_S, TcpProxy, eventually, eventually_async
from tools.private_servers import RabbitMQ

Proxied = Callable[[str], TcpProxy]


@asynccontextmanager
async def working(broker: RabbitBroker, consumer: CommandSource) -> AsyncIterator[None]:
    """A worker that answers whatever comes, also after an outage."""

    async def work() -> None:
        while deliveries := await consumer.next_batch():
            try:
                await answer(broker, consumer, deliveries)
            except PublishFailed:
                await consumer.requeue(deliveries)

    task = asyncio.create_task(work())
    yield
    task.cancel()
    await asyncio.wait([task])


def settled_down(server: RabbitMQ, url: str) -> None:
    """Wait until the quorum queue is on disk: RabbitMQ 3.10 can break one that is killed right after its birth."""

    def seen_by_statistics() -> bool:
        return any(
            queue["name"] == COMMAND_QUEUE and "message_bytes" in queue for queue in server.management.queues(url)
        )

    eventually(seen_by_statistics)


@pytest.mark.slow
async def test_calls_survive_a_broker_that_is_killed(
    breakable_rabbitmq: RabbitMQ, amqp_url: str, cleaning: AsyncExitStack
) -> None:
    async with RabbitBroker(amqp_url) as broker:
        consumer = await started_consumer(broker, cleaning)
        caller = await started_caller(broker, cleaning)
        await asyncio.to_thread(settled_down, breakable_rabbitmq, amqp_url)
        calls = [
            asyncio.create_task(caller.call(b"body %d" % n, message_id=str(n), timeout_s=PATIENCE_S)) for n in range(20)
        ]
        await batch(consumer)
        breakable_rabbitmq.kill()
        await eventually_async(lambda: not consumer.readiness.ready)
        assert not any(call.done() for call in calls)
        await asyncio.to_thread(breakable_rabbitmq.start)
        async with working(broker, consumer), asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*calls) == [b"BODY %d" % n for n in range(20)]


async def test_a_frozen_broker_ends_calls_at_their_deadline_and_answers_them_when_thawed(
    breakable_rabbitmq: RabbitMQ, amqp_url: str, cleaning: AsyncExitStack
) -> None:
    async with RabbitBroker(amqp_url) as broker:
        consumer = await started_consumer(broker, cleaning)
        caller = await started_caller(broker, cleaning)
        async with working(broker, consumer):
            breakable_rabbitmq.freeze()
            with pytest.raises(CallTimeout):
                await caller.call(b"body", message_id="1", timeout_s=0.3)
            breakable_rabbitmq.thaw()
            assert await caller.call(b"body", message_id="1", timeout_s=PATIENCE_S) == b"BODY"


async def test_commands_are_done_with_while_the_broker_does_not_read_their_replies(
    breakable_rabbitmq: RabbitMQ, amqp_url: str, cleaning: AsyncExitStack
) -> None:
    """Handed back, they would come again, be answered again, and end among the dead letters."""
    large = b"x" * 1_000_000
    async with RabbitBroker(amqp_url) as broker:
        consumer = await started_consumer(broker, cleaning)
        caller = await started_caller(broker, cleaning)
        call = asyncio.create_task(caller.call(b"body", message_id="1", timeout_s=PATIENCE_S))
        (delivery,) = await batch(consumer)
        assert delivery.reply_to is not None
        reply = Reply(reply_to=delivery.reply_to, body=large, correlation_id="1", user_id=delivery.user_id)
        await broker.reply_publisher().reply_batch([replace(reply, body=b"nobody's", correlation_id="0")])
        breakable_rabbitmq.freeze()
        for _ in range(30):  # more than any buffer of a socket takes
            await broker.reply_publisher().reply_batch([reply], timeout_s=1.0)
        breakable_rabbitmq.thaw()
        assert await call == large


@pytest.mark.slow
async def test_everything_can_be_closed_while_the_broker_is_frozen(
    breakable_rabbitmq: RabbitMQ, amqp_url: str, cleaning: AsyncExitStack
) -> None:
    async with RabbitBroker(amqp_url) as broker:
        consumer = await started_consumer(broker, cleaning)
        caller = await started_caller(broker, cleaning)
        call = asyncio.create_task(caller.call(b"body", message_id="1", timeout_s=PATIENCE_S))
        deliveries = await batch(consumer)
        breakable_rabbitmq.freeze()
        async with asyncio.timeout(PATIENCE_S):
            await consumer.ack(deliveries)
            await consumer.drain(timeout_s=1.0)
            await caller.close()
        with pytest.raises(BrokerClosed):
            await call
    breakable_rabbitmq.thaw()


async def test_a_connection_that_swallows_everything_is_replaced(
    amqp_url: str, tcp_proxy: Proxied, cleaning: AsyncExitStack
) -> None:
    proxy = tcp_proxy(amqp_url)
    impatient = BrokerAddress(url=proxy.url, confirm_timeout_s=1.0)
    async with RabbitBroker(amqp_url) as direct, RabbitBroker(impatient) as broker:
        consumer = await started_consumer(direct, cleaning)
        caller = await started_caller(broker, cleaning)
        async with working(direct, consumer):
            proxy.stall()
            call = asyncio.create_task(caller.call(b"body", message_id="1", timeout_s=PATIENCE_S))
            await eventually_async(lambda: not caller.connected.is_set())
            proxy.restore()
            assert await call == b"BODY"


async def test_a_lost_reply_is_given_again_on_the_next_connection(
    amqp_url: str, tcp_proxy: Proxied, cleaning: AsyncExitStack
) -> None:
    proxy = tcp_proxy(amqp_url)
    patient = BrokerAddress(url=proxy.url, confirm_timeout_s=PATIENCE_S, resend_after_s=PATIENCE_S)
    async with RabbitBroker(amqp_url) as direct, RabbitBroker(patient) as broker:
        consumer = await started_consumer(direct, cleaning)
        caller = await started_caller(broker, cleaning)
        proxy.stall_replies()
        call = asyncio.create_task(caller.call(b"body", message_id="1", timeout_s=PATIENCE_S))
        await answer(direct, consumer, await batch(consumer))
        proxy.drop()
        proxy.restore()
        (again,) = await batch(consumer)
        assert again.message_id == "1"
        assert not call.done()
        await answer(direct, consumer, [again])
        assert await call == b"BODY"


async def test_a_reply_lost_on_the_workers_side_is_asked_for_again(amqp_url: str, cleaning: AsyncExitStack) -> None:
    async with RabbitBroker(BrokerAddress(url=amqp_url, resend_after_s=0.1)) as broker:
        consumer = await started_consumer(broker, cleaning)
        caller = await started_caller(broker, cleaning)
        call = asyncio.create_task(caller.call(b"body", message_id="1", timeout_s=PATIENCE_S))
        await consumer.ack(await batch(consumer))
        async with working(broker, consumer):
            assert await call == b"BODY"


async def test_a_command_without_a_reply_goes_out_again_ever_more_rarely(
    amqp_url: str, cleaning: AsyncExitStack
) -> None:
    """Also when that is longer than a broker may take to confirm: within 3 s after 0, 0.1, 0.3, 0.7 and 1.5 s."""
    address = BrokerAddress(url=amqp_url, resend_after_s=0.1, confirm_timeout_s=0.3)
    async with RabbitBroker(amqp_url) as direct, RabbitBroker(address) as broker:
        consumer = await started_consumer(direct, cleaning)
        caller = await started_caller(broker, cleaning)
        came: list[str | None] = []
        with pytest.raises(CallTimeout):
            await caller.call(b"body", message_id="1", timeout_s=3.0)
        last = asyncio.create_task(caller.call(b"body", message_id="2", timeout_s=PATIENCE_S))
        while "2" not in came:
            came += [delivery.message_id for delivery in await batch(consumer)]
        assert 2 <= came.count("1") <= 5
        last.cancel()
        await asyncio.wait([last])


async def test_a_consumer_whose_queue_is_deleted_declares_it_and_consumes_again(
    broker: RabbitBroker, amqp_url: str, cleaning: AsyncExitStack
) -> None:
    consumer = await started_consumer(broker, cleaning)
    caller = await started_caller(broker, cleaning)
    before = consumer.readiness
    async with working(broker, consumer), aiormq.connect(amqp_url) as connection:
        await (await connection.channel()).queue_delete(COMMAND_QUEUE)
        await eventually_async(lambda: consumer.readiness.since_s > before.since_s and consumer.readiness.ready)
        assert await caller.call(b"body", message_id="1", timeout_s=PATIENCE_S) == b"BODY"


async def test_a_full_queue_makes_calls_wait_and_not_fail(
    broker: RabbitBroker, amqp_url: str, cleaning: AsyncExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="bso_broker.rpc")
    async with aiormq.connect(amqp_url) as connection:
        channel = await connection.channel()
        await channel.queue_delete(COMMAND_QUEUE)
        await channel.queue_declare(
            COMMAND_QUEUE, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
        )
        await channel.queue_bind(COMMAND_QUEUE, COMMANDS, "command")
        await channel.basic_publish(b"in the way", exchange=COMMANDS, routing_key="command")
        caller = await started_caller(broker, cleaning)
        call = asyncio.create_task(caller.call(b"body", message_id="1", timeout_s=PATIENCE_S))
        await eventually_async(lambda: "command_refused" in [getattr(one, "action", "") for one in caplog.records])
        assert not call.done()
        await channel.queue_purge(COMMAND_QUEUE)
        await eventually_async(lambda: holds_one(channel))
        call.cancel()
        await asyncio.wait([call])


async def holds_one(channel: aiormq.abc.AbstractChannel) -> bool:
    return (await channel.queue_declare(COMMAND_QUEUE, passive=True)).message_count == 1


async def test_connections_closed_by_an_operator_are_made_again(
    breakable_rabbitmq: RabbitMQ, amqp_url: str, cleaning: AsyncExitStack
) -> None:
    async with RabbitBroker(amqp_url) as broker:
        consumer = await started_consumer(broker, cleaning)
        caller = await started_caller(broker, cleaning)

        def close_all() -> bool:
            return breakable_rabbitmq.management.close_connections(amqp_url) > 0

        async with working(broker, consumer):
            await asyncio.to_thread(eventually, close_all)
            assert await caller.call(b"body", message_id="1", timeout_s=PATIENCE_S) == b"BODY"


@contextmanager
def no_patience_with_workers(server: RabbitMQ) -> Iterator[None]:
    """The broker closes channels, made meanwhile, on which a delivery is not settled within a second or so."""
    server.control("eval", "[application:set_env(rabbit, K, 500) || K <- [consumer_timeout, channel_tick_interval]].")
    yield
    server.control(
        "eval",
        "application:set_env(rabbit, consumer_timeout, 1800000), "
        "application:set_env(rabbit, channel_tick_interval, 60000).",
    )


async def test_a_channel_that_the_broker_closes_because_a_worker_is_late_is_opened_again(
    breakable_rabbitmq: RabbitMQ, amqp_url: str, cleaning: AsyncExitStack
) -> None:
    async with RabbitBroker(amqp_url) as broker:
        with no_patience_with_workers(breakable_rabbitmq):
            consumer = await started_consumer(broker, cleaning)
            caller = await started_caller(broker, cleaning)
            before = consumer.readiness
            call = asyncio.create_task(caller.call(b"body", message_id="1", timeout_s=PATIENCE_S))
            late = await batch(consumer)
            await eventually_async(lambda: consumer.readiness.since_s > before.since_s)
        await consumer.ack(late)  # does nothing any more
        async with working(broker, consumer):
            assert await call == b"BODY"


async def test_every_call_is_answered_though_connections_break_all_the_time(
    amqp_url: str, tcp_proxy: Proxied, cleaning: AsyncExitStack
) -> None:
    clients_wire, workers_wire = tcp_proxy(amqp_url), tcp_proxy(amqp_url)
    async with RabbitBroker(workers_wire.url) as workers, RabbitBroker(clients_wire.url) as clients:
        consumers = [await started_consumer(workers, cleaning, batch_limit=4, prefetch=8) for _ in range(2)]
        caller = await started_caller(clients, cleaning)
        async with AsyncExitStack() as stack:
            for consumer in consumers:
                await stack.enter_async_context(working(workers, consumer))
            answered = 0
            for round_ in range(8):
                bodies = [b"body %d of %d" % (n, round_) for n in range(25)]
                calls = [
                    asyncio.create_task(caller.call(body, message_id=body.decode(), timeout_s=PATIENCE_S))
                    for body in bodies
                ]
                await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                (workers_wire if round_ % 2 else clients_wire).drop()
                assert await asyncio.gather(*calls) == [body.upper() for body in bodies]
                answered += len(calls)
            assert answered == 200
