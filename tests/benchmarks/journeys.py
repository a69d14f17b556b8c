"""Commands on their way through a broker: sent, counted and timed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

from bso.domain.commands import Request
from bso.domain.replies import Reply
from bso.schema.codec import decode_reply, encode_command
from bso.storage import SqlStore, open_store
from bso_broker.rabbit import RabbitBroker
from bso_broker.rpc import RpcClient
from tests.benchmarks.lanes import Lane
from tests.benchmarks.machine import Elapsed, Stopwatch
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
    """A way to somebody who answers; ``pids`` are the processes on it, by name."""

    amqp_url: str
    pids: Mapping[str, Sequence[int]]
    database_url: str | None = None

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
            yield Journeys(rpc=rpc, pids=self.pids, store=store)


@dataclass(kw_only=True)
class Journeys:
    """Sends commands along a route."""

    rpc: RpcClient
    pids: Mapping[str, Sequence[int]]
    store: SqlStore | None
    sent: int = field(default=0, init=False)

    async def ask(self, request: Request) -> Reply:
        """The reply to one command."""
        self.sent += 1
        return decode_reply(await self._call((request.command_id, encode_command(request))))

    async def drive(self, lanes: Sequence[Lane], calls: int) -> Driven:
        """Send reports on all lanes at once, on each one after the other; so many in all."""
        messages = [[_message(lane) for _ in range(max(1, calls // len(lanes)))] for lane in lanes]
        with self.watch() as watch:
            found = await asyncio.gather(*(one_after_the_other(lane, self._call) for lane in messages))
        await self.settled()
        timed = [one for lane in found for one in lane]
        latencies_s, replies = zip(*timed, strict=True)
        return Driven(elapsed=watch.include_others(), latencies_s=latencies_s, replies=replies)

    def watch(self) -> Stopwatch:
        """A stopwatch over all processes on the route."""
        return Stopwatch(**self.pids)

    async def settled(self) -> None:
        """Wait until everything that was decided is published, and marked so."""
        if self.store is not None:
            await eventually_async(self._is_settled, timeout_s=TIMEOUT_S)

    async def _is_settled(self) -> bool:
        assert self.store is not None
        return not (await self.store.unpublished(older_than_s=0.0, limit=1)).events

    async def _call(self, message: Message) -> bytes:
        command_id, body = message
        return await self.rpc.call(body, message_id=command_id, timeout_s=TIMEOUT_S)


async def one_after_the_other(messages: Sequence[T], ask: Callable[[T], Awaitable[bytes]]) -> list[tuple[float, bytes]]:
    """The replies to messages, each sent after the reply to the one before, and how long each took [s]."""
    timed = []
    for message in messages:
        began_s = perf_counter()
        reply = await ask(message)
        timed.append((perf_counter() - began_s, reply))
    return timed


def _message(lane: Lane) -> Message:
    request = lane.report()
    return request.command_id, encode_command(request)
