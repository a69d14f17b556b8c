"""Commands on their way through a broker: sent, counted and timed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

from bso.domain.commands import Request
from bso.domain.replies import Reply
from bso.schema.codec import decode_reply, encode_command
from bso.storage import SqlStore, open_store
from bso_broker.rabbit import RabbitBroker
from bso_broker.rpc import RpcClient
from tests.benchmarks.lanes import Reporter
from tests.benchmarks.machine import Elapsed, Stopwatch
from tests.integration.workers.processes import WorkerProcess
from tests.servers import eventually_async

TIMEOUT_S = 60.0

T = TypeVar("T")

Message = tuple[str, bytes]
"""A command_id and the command's bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """What a load has met; CPU times include what is done after the reply, such as publishing events."""

    elapsed: Elapsed
    latencies_s: tuple[float, ...]
    replies: tuple[bytes, ...]
    batches: float = 0.0  # transactions of workers

    @property
    def commands_per_batch(self) -> float:
        """How many commands workers decided in one transaction; 0.0 without workers."""
        return len(self.replies) / self.batches if self.batches else 0.0

    @property
    def rate(self) -> float:
        """Replies per second."""
        return len(self.replies) / self.elapsed.wall_s

    def cpu_us(self, name: str | None = None) -> float:
        """CPU time per reply of one of the other processes, or of this one."""
        cpu_s = self.elapsed.cpu_s if name is None else self.elapsed.others_s[name]
        return cpu_s / len(self.replies) * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A way to somebody who answers; ``pids`` are the processes on it, by name, ``workers`` those that count."""

    amqp_url: str
    pids: Mapping[str, Sequence[int]]
    database_url: str | None = None
    workers: Sequence[WorkerProcess] = ()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Journeys"]:
        """Connected."""
        async with AsyncExitStack() as stack:
            broker = await stack.enter_async_context(RabbitBroker(self.amqp_url))
            rpc = broker.rpc_client()
            await rpc.start()
            stack.push_async_callback(rpc.close)
            store = None
            if self.database_url is not None:
                store = open_store(self.database_url)
                stack.push_async_callback(store.close)
            yield Journeys(rpc=rpc, pids=self.pids, store=store, workers=self.workers)


@dataclass(kw_only=True)
class Journeys:
    """Sends commands along a route."""

    rpc: RpcClient
    pids: Mapping[str, Sequence[int]]
    store: SqlStore | None = None
    workers: Sequence[WorkerProcess] = ()

    async def ask(self, request: Request) -> Reply:
        """The reply to one command."""
        return decode_reply(await self.send((request.command_id, encode_command(request))))

    async def send(self, message: Message) -> bytes:
        """The bytes of its reply."""
        command_id, body = message
        return await self.rpc.call(body, message_id=command_id, timeout_s=TIMEOUT_S)

    async def drive(self, lanes: Sequence[Reporter], calls: int) -> Driven:
        """Send reports on all lanes at once, on each one after the other; so many in all."""
        return await drive([(self, lanes)], calls)

    def watch(self) -> Stopwatch:
        """A stopwatch over all processes on the route."""
        return Stopwatch(**self.pids)

    async def counted(self, metric: str) -> float:
        """A metric of all workers together."""
        found = await asyncio.gather(*(asyncio.to_thread(worker.metric, metric) for worker in self.workers))
        return sum(found)

    async def settled(self) -> None:
        """Wait until everything that was decided is published, and marked so."""
        if self.store is not None:
            await eventually_async(self._is_settled, timeout_s=TIMEOUT_S)

    async def _is_settled(self) -> bool:
        assert self.store is not None
        return not (await self.store.unpublished(older_than_s=0.0, limit=1)).events


async def drive(shares: Sequence[tuple[Journeys, Sequence[Reporter]]], calls: int) -> Driven:
    """Send reports on all lanes at once, each along its own route; so many in all."""
    each = max(1, calls // sum(len(lanes) for _, lanes in shares))
    messages = [(journeys, [_message(lane) for _ in range(each)]) for journeys, lanes in shares for lane in lanes]
    batches = await _batches(shares)
    pids: dict[str, set[int]] = {}
    for journeys, _ in shares:
        for name, some in journeys.pids.items():
            pids.setdefault(name, set()).update(some)
    with Stopwatch(**pids) as watch:
        found = await asyncio.gather(*(one_after_the_other(lane, journeys.send) for journeys, lane in messages))
    for journeys, _ in shares:
        await journeys.settled()
    elapsed = watch.include_others()
    latencies_s, replies = zip(*(one for lane in found for one in lane), strict=True)
    batches = await _batches(shares) - batches
    return Driven(elapsed=elapsed, latencies_s=latencies_s, replies=replies, batches=batches)


async def _batches(shares: Sequence[tuple[Journeys, object]]) -> float:
    return sum([await journeys.counted("bso_batch_commands_count") for journeys, _ in shares])


async def one_after_the_other(messages: Sequence[T], ask: Callable[[T], Awaitable[bytes]]) -> list[tuple[float, bytes]]:
    """The replies to messages, each sent after the reply to the one before, and how long each took [s]."""
    timed = []
    for message in messages:
        began_s = perf_counter()
        reply = await ask(message)
        timed.append((perf_counter() - began_s, reply))
    return timed


def _message(lane: Reporter) -> Message:
    request = lane.report()
    return request.command_id, encode_command(request)
