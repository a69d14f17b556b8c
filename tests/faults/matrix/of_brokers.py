"""Faults of the broker: killed, frozen, out of memory, far away, with queues and rights that somebody takes away."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from functools import partial
from urllib.parse import quote

import aio_pika
from aio_pika.exceptions import ChannelNotFoundEntity, DeliveryError

from bso.domain.commands import BeginTrial, DescribeJob, Request
from bso.domain.decide import Rules
from bso.replay.rebuild import rebuild
from bso.schema.codec import encode_command
from bso_broker.connection import login_of
from bso_broker.rabbit import RabbitBroker
from bso_broker.topology import COMMAND_QUEUE, COMMANDS, EVENT_LOG, EVENTS, PARKED, PARKED_FOR_S
from bso_client.delivery.left_behind import contents
from tests.faults.matrix.pair import of_three_nodes
from tests.faults.matrix.scenario import SENT_AGAIN_S, UNTOUCHED, scenario
from tests.faults.matrix.stage import Stage
from tests.integration.broker.test_broker_failures import settled_down
from tests.integration.workers.recurrences import HARDWARE
from tests.servers import eventually_async
from tools.private_servers import UNMISTAKABLE, RabbitMQ

_SHORT_TRAININGS = 16
_ASTRAY = 50


@scenario("SIGKILL of the broker, which is away for 3 s", needs_private=True, strikes_for_s=2.0)
async def broker_killed(stage: Stage) -> None:
    await _begun_and_settled(stage)
    await stage.suffer(_server(stage).kill, 3.0, _server(stage).start)


@scenario("the broker is stopped in order and started again", needs_private=True, strikes_for_s=2.0)
async def broker_restarted(stage: Stage) -> None:
    await _begun_and_settled(stage)
    await stage.suffer(_server(stage).stop, 0.0, _server(stage).start)


@scenario("the broker is away for 32 s: longer than any client waits", needs_private=True, strikes_for_s=31.0)
async def broker_away(stage: Stage) -> None:
    await _begun_and_settled(stage)
    await stage.suffer(_server(stage).kill, 32.0, _server(stage).start)


@scenario("16 short trainings of two jobs while the broker is away, eight at a time", needs_private=True)
async def broker_away_from_many(stage: Stage) -> None:
    await _begun_and_settled(stage)
    async with stage.fault():
        await asyncio.to_thread(_server(stage).kill)
        for _ in range(_SHORT_TRAININGS // 8):
            for number in range(8):
                stage.train(like=stage.trainings[number % 2], nights=1)
            for training in stage.trainings[-8:]:
                await asyncio.to_thread(training.process.wait, 60)
        folders = {training.state_dir for training in stage.trainings}
        kept = [letter for folder in folders for job in contents(folder) for letter in job.letters]
        stage.figures["commands_kept"] = len(kept)
        beginnings = {letter.training for letter in kept if isinstance(letter.request.command, BeginTrial)}
        if len(beginnings) < _SHORT_TRAININGS:
            stage.surprises.append(f"{len(beginnings)} of {_SHORT_TRAININGS} trainings have kept their beginning")
        await asyncio.to_thread(_server(stage).start)


@scenario(
    "the node that leads the command queue is killed, of three",
    needs_private=True,
    variant=of_three_nodes,
    promises=UNTOUCHED,
)
async def queue_leader_killed(stage: Stage) -> None:
    leader = stage.pair.cluster[0]
    async with RabbitBroker(stage.amqp_url.replace(f":{_server(stage).port}/", f":{leader.port}/")) as broker:
        await broker.declare()  # a queue is led where it was declared
    await _begun_and_settled(stage)
    queue = await asyncio.to_thread(leader.management.request, "GET", f"queues/{vhost_of(stage)}/{COMMAND_QUEUE}")
    assert (queue["leader"], len(queue["members"])) == (leader.node, 3), queue
    await stage.suffer(leader.kill, 10.0, leader.start)


@scenario("SIGSTOP of the broker for 20 s", needs_private=True, strikes_for_s=19.0)
async def broker_frozen(stage: Stage) -> None:
    await stage.begin()
    await stage.suffer(_server(stage).freeze, 20.0, _server(stage).thaw)


@scenario("the broker has no memory left for 15 s", needs_private=True, strikes_for_s=10.0)
async def broker_out_of_memory(stage: Stage) -> None:
    control = partial(_server(stage).control, "set_vm_memory_high_watermark")
    await stage.begin()
    await stage.suffer(partial(control, "0.0000001"), 15.0, partial(control, "absolute", "2GB"))


@scenario(
    "connections to the broker are closed by it, eight times",
    promises={"others_stall_s": 6.0, "others_slowest_s": 12.0},
)
async def broker_connections_killed(stage: Stage) -> None:
    await stage.begin()
    closed = 0
    async with stage.fault():
        for _ in range(8):
            await stage.pause(0.3, 2.0)
            closed += await asyncio.to_thread(stage.pair.management.close_connections, stage.amqp_url) > 0
    assert closed >= 4, f"only {closed} of 8 times there was a connection to close: the fault did not strike"


@scenario("the command queue is deleted three times, under its consumers", promises={"others_slowest_s": SENT_AGAIN_S})
async def command_queue_deleted(stage: Stage) -> None:
    await stage.begin()
    async with stage.fault():
        for _ in range(3):
            await delete(stage, "queues", COMMAND_QUEUE)
            await stage.progress(30)


@scenario(
    "the command queue is purged while no worker runs and commands lie in it, then deleted so",
    promises={"others_slowest_s": SENT_AGAIN_S},
    strikes_for_s=9.0,
)
async def command_queue_emptied(stage: Stage) -> None:
    await stage.begin()
    async with stage.fault():
        for empty in (purge, _delete_the_queue):
            for worker in stage.living:
                stage.kill(worker)
            await stage.pause(1.0)
            destroyed = await empty(stage)
            assert destroyed, "no command lay in the queue: the fault did not strike"
            for _ in range(2):
                stage.worker()
            await stage.progress(50)


async def purge(stage: Stage) -> int:
    """Purge the command queue; how many commands that has destroyed. Another fault may just have deleted it."""
    async with await aio_pika.connect(stage.amqp_url) as connection:
        channel = await connection.channel()
        try:
            purged = await (await channel.get_queue(COMMAND_QUEUE, ensure=False)).purge()
        except ChannelNotFoundEntity:
            return 0
    return purged.message_count or 0


async def _delete_the_queue(stage: Stage) -> int:
    async with await aio_pika.connect(stage.amqp_url) as connection:
        channel = await connection.channel()
        deleted = await (await channel.get_queue(COMMAND_QUEUE, ensure=False)).delete(if_unused=False, if_empty=False)
    return deleted.message_count or 0


@scenario("the event exchange and the event log are deleted", forgets_events=True, promises=UNTOUCHED)
async def event_exchange_deleted(stage: Stage) -> None:
    await stage.begin()
    async with stage.fault():
        await delete(stage, "exchanges", EVENTS)
        await stage.progress(50)
        await delete(stage, "queues", EVENT_LOG)
        await stage.progress(50)
        await eventually_async(partial(_is_bound, stage, EVENTS, EVENT_LOG), what="the event log, declared again")


async def _is_bound(stage: Stage, exchange: str, queue: str) -> bool:
    bindings = await management_request(stage, "GET", f"exchanges/{vhost_of(stage)}/{exchange}/bindings/source")
    return any(binding["destination"] == queue for binding in bindings)


@scenario("the command exchange is deleted, then its binding", strikes_for_s=1.0)
async def command_exchange_deleted(stage: Stage) -> None:
    await stage.begin()
    async with stage.fault():
        await delete(stage, "exchanges", COMMANDS)
        await stage.progress(30)
        path = f"bindings/{vhost_of(stage)}/e/{COMMANDS}/q/{COMMAND_QUEUE}"
        for binding in await management_request(stage, "GET", path):
            await management_request(stage, "DELETE", f"{path}/{binding['properties_key']}")
        await stage.progress(30)


@scenario("somebody binds the command queue to another exchange, and 50 commands come by it", promises=UNTOUCHED)
async def foreign_binding(stage: Stage) -> None:
    await stage.begin()
    async with stage.fault(), await aio_pika.connect(stage.amqp_url) as connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange("amq.fanout")
        queue = await channel.get_queue(COMMAND_QUEUE, ensure=False)
        await queue.bind(exchange)
        for _ in range(_ASTRAY):
            begin = Request(command_id=str(uuid.uuid4()), job_id=stage.harmed, command=BeginTrial(hardware=HARDWARE))
            await exchange.publish(aio_pika.Message(encode_command(begin), message_id=begin.command_id), "")
        stage.dead_letters = _ASTRAY
        await eventually_async(lambda: _astray(stage) == _ASTRAY, what="50 dead letters")
        await queue.unbind(exchange)


def _astray(stage: Stage) -> float:
    return sum(worker.metric("bso_dead_letters_total", reason="foreign_binding") for worker in stage.living)


@scenario(
    "a job is damaged while its commands cannot be parked: queues deleted, then the exchange, then queues full",
    promises=UNTOUCHED,
)
async def parking_unavailable(stage: Stage) -> None:
    await stage.begin(lanes=6)  # some of them are about to report, which is what is parked
    async with stage.fault():
        for queue in PARKED_FOR_S:  # while they are empty: what lies in them would be destroyed
            await delete(stage, "queues", queue)
        await _damage(stage)
        await eventually_async(lambda: any(one.was_kept for one in stage.ledger.asked), what="a parked command")
        await stage.pause(3.0)
        await delete(stage, "exchanges", PARKED)
        await stage.pause(6.0)
        await _policy(stage, {"max-length": 3})
        await _keep_full(stage, seconds=8)
        await management_request(stage, "DELETE", f"policies/{vhost_of(stage)}/parked")
        await rebuild(stage.store, stage.harmed, rules=Rules())
    assert any(worker.lines("parking_failed") for worker in stage.workers), "no command failed to be parked"


@scenario(
    "a job is damaged while its commands are parked again and again, five times a second",
    strikes_for_s=14.0,
    promises=UNTOUCHED,
)
async def parked_thirty_times(stage: Stage) -> None:
    await stage.begin(lanes=6)  # some of them are about to report, which is what is parked
    async with stage.fault():
        await _policy(stage, {"message-ttl": 200})
        await _damage(stage)
        await stage.pause(15.0)
        await eventually_async(partial(_are_parked, stage, 30), timeout_s=60.0, what="30 parks of each kept command")
        await rebuild(stage.store, stage.harmed, rules=Rules())
        await management_request(stage, "DELETE", f"policies/{vhost_of(stage)}/parked")


async def _are_parked(stage: Stage, times: int) -> bool:
    """Whether the commands that were kept have been parked so many times each, on average."""
    parks = [await asyncio.to_thread(worker.metric, "bso_parked_commands_total") for worker in stage.living]
    kept = sum(one.was_kept for one in stage.ledger.asked)
    stage.figures["parks_per_kept_command"] = sum(parks) / max(1, kept)
    return kept > 0 and sum(parks) >= times * kept


@scenario("rights of the workers' login are taken away, then the login itself, each for 5 s", strikes_for_s=4.0)
async def broker_login_removed(stage: Stage) -> None:
    management = stage.pair.management
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    name = f"worker-{stage.rng.getrandbits(32):08x}"
    url = await asyncio.to_thread(lambda: management.add_user(stage.amqp_url, name, UNMISTAKABLE, **rights))
    await stage.begin(amqp_url=url)
    async with stage.fault():
        await management_request(stage, "DELETE", f"permissions/{vhost_of(stage)}/{name}")
        await asyncio.to_thread(management.close_connections, url)
        await stage.pause(5.0)
        await asyncio.to_thread(lambda: management.permit(name, stage.amqp_url))
        await stage.progress(50)
        await asyncio.to_thread(lambda: management.permit(name, stage.amqp_url, write="^$"))
        await stage.pause(5.0)
        await asyncio.to_thread(lambda: management.permit(name, stage.amqp_url))
        await stage.progress(50)
        await management_request(stage, "DELETE", f"users/{name}")
        await stage.pause(5.0)
        await asyncio.to_thread(lambda: management.add_user(stage.amqp_url, name, UNMISTAKABLE, **rights))


@scenario("300 ms to the broker and back, for 15 s", strikes_for_s=0.3, promises=UNTOUCHED)
async def broker_far(stage: Stage) -> None:
    proxy = await stage.proxied(stage.amqp_url)
    await stage.begin(amqp_url=proxy.url)
    async with stage.fault():
        proxy.delay(0.15)
        await stage.pause(15.0)
        proxy.restore()


@scenario("300 ms to the broker and back, and to the database and back, for 15 s", strikes_for_s=0.6)
async def both_servers_far(stage: Stage) -> None:
    proxies = [await stage.proxied(url) for url in (stage.amqp_url, stage.database_url)]
    await stage.begin(amqp_url=proxies[0].url, database_url=proxies[1].url)
    async with stage.fault():
        for proxy in proxies:
            proxy.delay(0.15)
        await stage.pause(15.0)
        for proxy in proxies:
            proxy.restore()


def _server(stage: Stage) -> RabbitMQ:
    assert stage.pair.rabbitmq is not None
    return stage.pair.rabbitmq


def vhost_of(stage: Stage) -> str:
    return quote(stage.amqp_url.rpartition("/")[2], safe="")


async def _begun_and_settled(stage: Stage) -> None:
    """Begin, and wait until the command queue is on disk."""
    await stage.begin()
    await asyncio.to_thread(settled_down, _server(stage), stage.amqp_url)


async def _damage(stage: Stage) -> None:
    await stage.execute(f"UPDATE job SET revision = revision + 1, state = '[' WHERE job_id = '{stage.harmed}'")


async def _keep_full(stage: Stage, *, seconds: int) -> None:
    """Keep the parking queues full of questions that nobody waits for; those leave them as all commands do."""
    async with await aio_pika.connect(stage.amqp_url) as connection:
        exchange = (await connection.channel()).default_exchange
        for _ in range(seconds):
            for name in (name for name in PARKED_FOR_S for _ in range(6)):
                question = Request(command_id=str(uuid.uuid4()), job_id=stage.others[0], command=DescribeJob())
                login = login_of(stage.amqp_url)
                message = aio_pika.Message(encode_command(question), message_id=question.command_id, user_id=login)
                with suppress(DeliveryError):  # full
                    await exchange.publish(message, name)
            await stage.pause(1.0)


async def management_request(stage: Stage, method: str, path: str, body: object = None) -> list[dict[str, str]]:
    found: list[dict[str, str]] = await asyncio.to_thread(stage.pair.management.request, method, path, body)
    return found


async def delete(stage: Stage, kind: str, name: str) -> None:
    await management_request(stage, "DELETE", f"{kind}/{vhost_of(stage)}/{name}")


async def _policy(stage: Stage, definition: dict[str, int]) -> None:
    """A policy for the parking queues: the smaller one of its limits and theirs holds."""
    pattern = "|".join(name.replace(".", "\\.") for name in PARKED_FOR_S)
    body = {"pattern": f"^({pattern})$", "definition": definition, "apply-to": "queues", "priority": 1}
    await management_request(stage, "PUT", f"policies/{vhost_of(stage)}/parked", body)
