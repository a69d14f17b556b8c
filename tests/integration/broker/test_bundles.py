"""Bundles on a broker: commands of one turn share messages, each is settled by itself, and none is lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import aiormq
import pytest
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

from bso.domain.commands import Command, DeleteJob, RenewLease, ReportEpoch, Request
from bso_broker.bundles import BUNDLE, MOST_PARTS, bundle_of, parts_of
from bso_broker.connection import BrokerAddress
from bso_broker.errors import NoCommandQueue
from bso_broker.rabbit import RabbitBroker
from bso_broker.rpc import RpcClient
from bso_broker.topology import COMMAND_QUEUE, COMMANDS
from bso_client.transports.broker import BrokerTransport
from tests.contract.broker.stories import answer, batch, several, started_consumer
from tests.fakes.memory_broker import CommandSource
from tests.servers import PATIENCE_S, TcpProxy, eventually_async

pytestmark = pytest.mark.newest

Proxied = Callable[[str], TcpProxy]
COUNT = 2 * MOST_PARTS + 1


@pytest.fixture
async def bundler(amqp_url: str, broker: RabbitBroker, cleaning: AsyncExitStack) -> RpcClient:
    """A client, connected, which sends nothing twice."""
    return await connected(RpcClient(BrokerAddress(url=amqp_url, resend_after_s=PATIENCE_S)), cleaning)


async def connected(client: RpcClient, cleaning: AsyncExitStack) -> RpcClient:
    await client.start()
    cleaning.push_async_callback(client.close)
    async with asyncio.timeout(PATIENCE_S):
        await client.connected.wait()
    return client


@pytest.fixture
async def calls(bundler: RpcClient) -> AsyncIterator[list[asyncio.Task[bytes]]]:
    """Many calls of the same turn."""
    calls = called(bundler, COUNT)
    yield calls
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)


def called(client: RpcClient, count: int) -> list[asyncio.Task[bytes]]:
    return [bundled(client, f"id-{number}", b"body %d" % number) for number in range(count)]


def bundled(client: RpcClient, message_id: str, body: bytes) -> asyncio.Task[bytes]:
    call = client.call(body, message_id=message_id, timeout_s=PATIENCE_S, may_be_bundled=True)
    return asyncio.create_task(call)


async def any_waiting(broker: RabbitBroker) -> bool:
    async with broker.dead_letters() as box:
        return (await box.counts()).commands > 0


async def test_calls_of_one_turn_share_messages_and_each_gets_its_reply(
    broker: RabbitBroker, cleaning: AsyncExitStack, calls: list[asyncio.Task[bytes]]
) -> None:
    consumer = await started_consumer(broker, cleaning)
    deliveries = await several(consumer, COUNT)
    assert [(each.message_id, each.correlation_id, each.body) for each in deliveries] == [
        (f"id-{number}", f"id-{number}", b"body %d" % number) for number in range(COUNT)
    ]
    assert len({each.tag for each in deliveries}) == 3
    assert [each.is_of_bundle for each in deliveries] == [True] * (COUNT - 1) + [False]  # the last one is alone
    await answer(broker, consumer, deliveries)
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*calls) == [b"BODY %d" % number for number in range(COUNT)]


async def test_replies_to_what_came_in_bundles_go_out_in_bundles(
    broker: RabbitBroker, amqp_url: str, cleaning: AsyncExitStack
) -> None:
    consumer = await started_consumer(broker, cleaning)
    received: list[DeliveredMessage] = []

    async def receive(message: DeliveredMessage) -> None:
        received.append(message)

    async with aiormq.connect(amqp_url) as connection:
        channel = await connection.channel()
        queue = f"bso.reply.guest.{'0' * 32}"
        await channel.queue_declare(queue, exclusive=True)
        await channel.basic_consume(queue, receive, no_ack=True)
        for body in (bundle_of([("1", b"one"), ("2", b"two")]), b"three"):
            properties = Basic.Properties(
                content_type=BUNDLE if body != b"three" else None, message_id="3", correlation_id="3", reply_to=queue
            )
            await channel.basic_publish(body, exchange=COMMANDS, routing_key="command", properties=properties)
        await answer(broker, consumer, await several(consumer, 3))
        await eventually_async(lambda: len(received) == 2)
    by_type = {message.header.properties.content_type: message for message in received}
    assert parts_of(by_type[BUNDLE].body) == [("1", b"ONE"), ("2", b"TWO")]
    assert (by_type[None].body, by_type[None].header.properties.correlation_id) == (b"THREE", "3")


async def test_a_message_is_settled_with_the_last_of_its_commands(
    broker: RabbitBroker, cleaning: AsyncExitStack, calls: list[asyncio.Task[bytes]]
) -> None:
    dying = await started_consumer(broker, cleaning)
    deliveries = await several(dying, COUNT)
    await dying.ack(deliveries[1:])
    for _ in range(COUNT):  # settling the same ones again settles no others
        await dying.ack(deliveries[1:2])
        await dying.requeue(deliveries[2:3])
    await dying.close()
    living = await started_consumer(broker, cleaning)
    again = await several(living, MOST_PARTS)
    assert [each.message_id for each in again] == [each.message_id for each in deliveries[:MOST_PARTS]]
    assert all(each.redelivered for each in again)
    await answer(broker, living, again)
    await eventually_async(calls[0].done)
    assert await living.ready_messages() == 0


async def test_a_message_comes_again_once_all_its_commands_are_settled_and_one_was_handed_back(
    broker: RabbitBroker, cleaning: AsyncExitStack, calls: list[asyncio.Task[bytes]]
) -> None:
    consumer = await started_consumer(broker, cleaning)
    deliveries = await several(consumer, COUNT)
    first = deliveries[:MOST_PARTS]
    await consumer.requeue(first[:1])
    await consumer.ack(deliveries[MOST_PARTS:])
    await consumer.ack(first[1:-1])
    assert await consumer.ready_messages() == 0
    await consumer.ack(first[-1:])
    again = await several(consumer, MOST_PARTS)
    assert [each.message_id for each in again] == [each.message_id for each in first]
    await answer(broker, consumer, again)
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*calls[:MOST_PARTS]) == [each.body.upper() for each in first]


async def test_a_command_that_was_settled_before_hands_nothing_back(
    broker: RabbitBroker, cleaning: AsyncExitStack, calls: list[asyncio.Task[bytes]]
) -> None:
    consumer = await started_consumer(broker, cleaning)
    deliveries = await several(consumer, COUNT)
    await consumer.ack(deliveries[:1])
    await consumer.requeue(deliveries[:1])  # as where something has failed after the answer
    await answer(broker, consumer, deliveries[1:])
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*calls[1:])
    await nothing_else_comes(broker, consumer)


async def nothing_else_comes(broker: RabbitBroker, consumer: CommandSource) -> None:
    """What is sent now is what comes next."""
    client = broker.rpc_client()
    await client.start()
    call = asyncio.create_task(client.call(b"next", message_id="next", timeout_s=PATIENCE_S))
    (delivery,) = await batch(consumer)
    assert delivery.message_id == "next"
    await answer(broker, consumer, [delivery])
    assert await call == b"NEXT"
    await client.close()


async def test_a_part_that_is_parked_comes_back_alone(
    broker: RabbitBroker, cleaning: AsyncExitStack, calls: list[asyncio.Task[bytes]]
) -> None:
    consumer = await started_consumer(broker, cleaning)
    deliveries = await several(consumer, COUNT)
    await consumer.park(deliveries[3], sender="guest", pause_s=0.0)
    await answer(broker, consumer, [*deliveries[:3], *deliveries[4:]])
    (again,) = await batch(consumer)
    assert (again.message_id, again.body, again.is_of_bundle) == ("id-3", b"body 3", False)
    assert again.parked_s > 0
    await answer(broker, consumer, [again])
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*calls) == [b"BODY %d" % number for number in range(COUNT)]


async def test_a_connection_that_is_lost_while_messages_are_handed_back_ends_the_pause(
    broker: RabbitBroker,
    amqp_url: str,
    cleaning: AsyncExitStack,
    calls: list[asyncio.Task[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nack, handed_back = aiormq.Channel.basic_nack, 0

    async def lose(channel: aiormq.Channel, tag: int, *, requeue: bool, wait: bool) -> None:
        nonlocal handed_back
        handed_back += 1
        if handed_back == 1:
            await channel.connection.close()
        else:
            await nack(channel, tag, requeue=requeue, wait=wait)

    monkeypatch.setattr(aiormq.Channel, "basic_nack", lose)
    consumer = await started_consumer(broker, cleaning)
    await several(consumer, COUNT)
    async with asyncio.timeout(PATIENCE_S):
        await consumer.pause("the database is away")
    assert handed_back > 0
    assert consumer.readiness.reason == "the database is away"
    living = await started_consumer(broker, cleaning)
    await answer(broker, living, await several(living, COUNT))
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*calls)


async def test_a_worker_that_drains_hands_back_a_message_of_which_it_has_taken_a_part(
    broker: RabbitBroker, cleaning: AsyncExitStack, calls: list[asyncio.Task[bytes]]
) -> None:
    draining = await started_consumer(broker, cleaning, batch_limit=5)
    taken = list(await batch(draining))
    ending = asyncio.create_task(draining.drain(timeout_s=PATIENCE_S))
    await eventually_async(lambda: not draining.readiness.ready)
    await answer(broker, draining, taken)
    assert await ending
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*calls[:5]) == [each.body.upper() for each in taken]
    living = await started_consumer(broker, cleaning)
    again = await several(living, COUNT)
    assert {each.message_id for each in again} == {f"id-{number}" for number in range(COUNT)}
    await answer(broker, living, again)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*calls)


async def test_a_pause_hands_back_whole_messages(
    broker: RabbitBroker, cleaning: AsyncExitStack, calls: list[asyncio.Task[bytes]]
) -> None:
    consumer = await started_consumer(broker, cleaning, batch_limit=5)
    taken = await batch(consumer)
    await consumer.ack(taken[:2])
    await consumer.pause("the database is away")
    await consumer.resume()
    again = await several(consumer, COUNT)
    assert {each.message_id for each in again} == {f"id-{number}" for number in range(COUNT)}


async def test_a_command_of_a_bundle_dies_alone(
    broker: RabbitBroker, cleaning: AsyncExitStack, calls: list[asyncio.Task[bytes]]
) -> None:
    consumer = await started_consumer(broker, cleaning)
    deliveries = await several(consumer, COUNT)
    await consumer.dead_letter(deliveries[3], reason="poison", sender="guest")
    await answer(broker, consumer, [*deliveries[:3], *deliveries[4:]])
    async with broker.dead_letters() as box:
        (letter,) = await box.peek()
    assert (letter.message_id, letter.body, letter.reason) == ("id-3", b"body 3", "poison")
    others = [call for number, call in enumerate(calls) if number != 3]
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*others)
    assert not calls[3].done()


@pytest.mark.parametrize("body", [b"", b"one-word", b"\xff\xfe body", b"id x\n" * (MOST_PARTS + 1)])
async def test_what_is_no_bundle_is_handed_over_as_it_came(
    broker: RabbitBroker, amqp_url: str, cleaning: AsyncExitStack, body: bytes
) -> None:
    consumer = await started_consumer(broker, cleaning)
    async with aiormq.connect(amqp_url) as connection:
        channel = await connection.channel()
        properties = Basic.Properties(content_type=BUNDLE, message_id="its own")
        await channel.basic_publish(body, exchange=COMMANDS, routing_key="command", properties=properties)
        (delivery,) = await batch(consumer)
    assert (delivery.message_id, delivery.body, delivery.is_of_bundle) == ("its own", body, False)
    await consumer.ack([delivery])
    assert await consumer.ready_messages() == 0


async def test_a_bundle_among_the_dead_letters_is_sent_again_as_one(
    broker: RabbitBroker, amqp_url: str, cleaning: AsyncExitStack, calls: list[asyncio.Task[bytes]]
) -> None:
    async with aiormq.connect(amqp_url) as connection:
        channel = await connection.channel()
        await eventually_async(lambda: any_waiting(broker))
        found = await channel.basic_get(COMMAND_QUEUE)
        await channel.basic_reject(found.delivery_tag or 0, requeue=False)  # as after too many deliveries
        async with broker.dead_letters() as box:
            (letter,) = await eventually_async(box.peek)
            assert parts_of(letter.body)[0] == ("id-0", b"body 0")
            assert await box.requeue() == 1
    consumer = await started_consumer(broker, cleaning)
    await answer(broker, consumer, await several(consumer, COUNT))
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*calls) == [b"BODY %d" % number for number in range(COUNT)]


async def test_replies_that_are_no_bundle_end_nothing(
    broker: RabbitBroker, amqp_url: str, cleaning: AsyncExitStack, calls: list[asyncio.Task[bytes]]
) -> None:
    consumer = await started_consumer(broker, cleaning)
    deliveries = await several(consumer, COUNT)
    async with aiormq.connect(amqp_url) as connection:
        channel = await connection.channel()
        properties = Basic.Properties(content_type=BUNDLE)
        for body in (b"", b"nobody's", b"x body\n\n"):
            await channel.basic_publish(body, routing_key=deliveries[0].reply_to or "", properties=properties)
    await answer(broker, consumer, deliveries)
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*calls) == [b"BODY %d" % number for number in range(COUNT)]


async def test_an_unusual_id_harms_nobody_else(
    bundler: RpcClient, broker: RabbitBroker, cleaning: AsyncExitStack
) -> None:
    unusual = 'a {}\nforged {"on_behalf_of": "root"}\nb'
    forging = bundled(bundler, unusual, b"forging")
    unreadable = [bundled(bundler, message_id, b"x") for message_id in ("x" * 256, "\ud800")]
    calls = called(bundler, 3)
    found = await asyncio.gather(*unreadable, return_exceptions=True)
    assert [type(each) for each in found] == [ValueError, UnicodeEncodeError]
    consumer = await started_consumer(broker, cleaning)
    deliveries = await several(consumer, 4)
    assert {each.message_id: each.body for each in deliveries} == {
        unusual: b"forging",
        **{f"id-{number}": b"body %d" % number for number in range(3)},
    }
    await answer(broker, consumer, deliveries)
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(forging, *calls) == [b"FORGING", *(b"BODY %d" % number for number in range(3))]


async def test_one_message_that_is_refused_leaves_the_others(
    bundler: RpcClient, broker: RabbitBroker, amqp_url: str
) -> None:
    async with aiormq.connect(amqp_url) as connection:
        channel = await connection.channel()
        await channel.queue_delete(COMMAND_QUEUE)
        await channel.queue_declare(
            COMMAND_QUEUE, durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"}
        )
        await channel.queue_bind(COMMAND_QUEUE, COMMANDS, "command")
        calls = called(bundler, COUNT)
        for _ in range(2):
            await eventually_async(lambda: any_waiting(broker))
            message = await channel.basic_get(COMMAND_QUEUE, no_ack=True)
            for command_id, body in parts_of(message.body):
                properties = Basic.Properties(correlation_id=command_id)
                reply_to = message.header.properties.reply_to or ""
                await channel.basic_publish(body.upper(), routing_key=reply_to, properties=properties)
        both = range(2 * MOST_PARTS)
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*calls[: len(both)]) == [b"BODY %d" % number for number in both]
        calls[-1].cancel()
        await asyncio.wait(calls)


async def test_commands_that_no_queue_takes_are_each_refused(
    bundler: RpcClient, broker: RabbitBroker, amqp_url: str
) -> None:
    async with aiormq.connect(amqp_url) as connection:
        await (await connection.channel()).queue_delete(COMMAND_QUEUE)
    calls = called(bundler, COUNT)
    async with asyncio.timeout(PATIENCE_S):
        found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in found] == [NoCommandQueue] * COUNT


async def test_calls_of_one_turn_survive_a_connection_that_breaks(
    broker: RabbitBroker, amqp_url: str, tcp_proxy: Proxied, cleaning: AsyncExitStack
) -> None:
    proxy = tcp_proxy(amqp_url)
    client = await connected(RpcClient(BrokerAddress(url=proxy.url)), cleaning)
    consumer = await started_consumer(broker, cleaning)
    calls = called(client, COUNT)
    taken = await several(consumer, COUNT)
    proxy.drop()
    await consumer.ack(taken)  # their replies would go to a queue that is gone
    again = await several(consumer, COUNT)
    assert {each.reply_to for each in again}.isdisjoint({each.reply_to for each in taken})
    await answer(broker, consumer, again)
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*calls) == [b"BODY %d" % number for number in range(COUNT)]


async def test_a_command_that_expires_goes_alone(
    bundler: RpcClient, broker: RabbitBroker, cleaning: AsyncExitStack
) -> None:
    calls = called(bundler, 2)
    late = bundler.call(b"late", message_id="late", timeout_s=PATIENCE_S, expiration_s=PATIENCE_S, may_be_bundled=True)
    calls.append(asyncio.create_task(late))
    consumer = await started_consumer(broker, cleaning)
    deliveries = await several(consumer, 3)
    by_id = {each.message_id: each for each in deliveries}
    assert not by_id["late"].is_of_bundle
    assert by_id["id-0"].tag == by_id["id-1"].tag
    await answer(broker, consumer, deliveries)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*calls)


@pytest.mark.parametrize("bundles", [True, False])
async def test_a_gateways_reports_share_messages_and_no_other_commands_do(
    broker: RabbitBroker, amqp_url: str, cleaning: AsyncExitStack, bundles: bool
) -> None:
    transport = BrokerTransport(amqp_url, bundles=bundles)
    await transport.start()
    cleaning.push_async_callback(transport.close)
    await eventually_async(lambda: transport.is_connected)
    report = ReportEpoch(trial_number=1, trial_id="", epoch=1.0, time_s=1.0, energy_j=None, metric=0.5)
    commands: list[Command] = [report, DeleteJob(), report, RenewLease(trial_number=1, trial_id="")]
    requests = [
        Request(command_id=f"id-{number}", job_id="job", command=command) for number, command in enumerate(commands)
    ]
    calls = [asyncio.create_task(transport.call(each, timeout_s=PATIENCE_S)) for each in requests]
    consumer = await started_consumer(broker, cleaning)
    deliveries = await several(consumer, len(requests))
    shared = {each.message_id for each in deliveries if each.is_of_bundle}
    assert shared == ({"id-0", "id-2"} if bundles else set())
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
