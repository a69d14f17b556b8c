"""Declaring the topology, and looking at queues: what is missing is created, what exists and differs is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias, assert_never

from aio_pika.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import ChannelLockedResource, ChannelPreconditionFailed
from pamqp.common import FieldTable

from bso.log_records import logger_of
from bso_broker.connection import explain, is_lost
from bso_broker.errors import BrokerUnreachable, NotPermitted, TopologyMismatch
from bso_broker.messages import QueueDepth
from bso_broker.topology import CLASSIC, COMMAND_QUEUE, QUORUM, Arguments, Binding, Exchange, Queue, Topology
from bso_broker.underlay import open_channel
from bso_broker.url_options import COMMAND_QUEUE_TYPE

logger = logger_of(__name__)

Part: TypeAlias = Exchange | Queue | Binding


async def declare_if_allowed(connection: AbstractConnection, topology: Topology) -> bool:
    """Create what is missing, and return True; False where this login may not: then others do."""
    try:
        await declare(connection, topology)
    except NotPermitted as error:
        logger.info("exchanges and queues are declared by others: %s", error, extra={"action": "topology_not_declared"})
        return False
    return True


async def declare(connection: AbstractConnection, topology: Topology, *, timeout_s: float = 30.0) -> None:
    """Create what is missing, on a channel of its own; what exists is left alone if it agrees.

    What differs keeps nothing else from being created: TopologyMismatch names all of it, with what to do.
    """
    parts: tuple[Part, ...] = (*topology.exchanges, *topology.queues, *topology.bindings)
    doing = "the channel"
    differing: list[tuple[Part, Exception]] = []
    try:
        async with asyncio.timeout(timeout_s):
            channel = await open_channel(connection, confirms=False)
            for part in parts:
                doing = _name(part)
                try:
                    await _create(channel, part)
                except (ChannelPreconditionFailed, ChannelLockedResource) as error:
                    differing.append((part, error))
                    channel = await open_channel(connection, confirms=False)
            await channel.close()
    except TimeoutError as error:
        raise BrokerUnreachable(f"the broker did not answer within {timeout_s:g} s when declaring {doing}") from error
    except BaseException as error:
        if is_lost(error):
            raise explain(error) from error
        raise
    if differing:
        raise _mismatch(topology, differing)


def _mismatch(topology: Topology, differing: Sequence[tuple[Part, Exception]]) -> TopologyMismatch:
    words = "the {} exists with other properties than this release needs ({})"
    what = "; ".join(words.format(_name(part), error) for part, error in differing)
    parts = [part for part, _ in differing]
    return TopologyMismatch(
        f"{what}. {_how_to_delete(parts)}, and a worker declares it again; or use another virtual "
        f"host{_other_type(topology, parts)}"
    )


def _how_to_delete(differing: Sequence[Part]) -> str:
    if all(isinstance(part, Exchange) for part in differing):
        return "Delete it (rabbitmqadmin delete exchange, or the management page)"
    return "Drain it, delete it (rabbitmqctl delete_queue, or the management page)"


def _other_type(topology: Topology, differing: Sequence[Part]) -> str:
    """What else may be done about a queue of commands that may be of another type: RabbitMQ names one difference."""
    if not any(isinstance(part, Queue) and part.name == COMMAND_QUEUE for part in differing):
        return ""
    [asked] = (queue.arguments["x-queue-type"] for queue in topology.queues if queue.name == COMMAND_QUEUE)
    other = QUORUM if asked == CLASSIC else CLASSIC
    return f"; or, if it is a {other} queue, write {COMMAND_QUEUE_TYPE}={other} in the address of workers and operators"


def _name(part: Part) -> str:
    match part:
        case Exchange():
            return f"exchange {part.name!r}"
        case Queue():
            return f"queue {part.name!r}"
        case Binding():
            return f"binding of {part.destination!r}"
        case _:
            assert_never(part)


async def _create(channel: AbstractChannel, part: Part) -> None:
    arguments = _table(part.arguments)
    match part:
        case Exchange():
            await channel.declare_exchange(part.name, part.type, durable=True, arguments=arguments)
        case Queue():
            await channel.declare_queue(part.name, durable=True, arguments=arguments)
        case Binding():
            queue = await channel.get_queue(part.destination, ensure=False)
            await queue.bind(part.source, part.routing_key, arguments=arguments)
        case _:
            assert_never(part)


async def depth_of(connection: AbstractConnection, queue: str) -> QueueDepth:
    """Count what waits in a queue, on a channel of its own, since a missing queue closes it. It has no deadline.

    TopologyMissing: there is no such queue. NotPermitted: this login may not look at it.
    """
    try:
        channel = await open_channel(connection, confirms=False)
        found = (await channel.declare_queue(queue, passive=True)).declaration_result
        await channel.close()
    except BaseException as error:
        if is_lost(error):
            raise explain(error) from error
        raise
    return QueueDepth(messages=found.message_count or 0, consumers=found.consumer_count or 0)


def _table(arguments: Arguments) -> FieldTable:
    return dict(arguments)
