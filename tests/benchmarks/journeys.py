"""Commands on their way through a broker: sent, counted and timed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Self, TypeVar

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
class Tally:
    """What workers and the database have counted: commands taken in batches, batches, and commits of all kinds."""

    taken: float = 0.0
    batches: float = 0.0
    commits: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """What a load has met; CPU times include what is done after the reply, such as publishing events."""

    elapsed: Elapsed
    latencies_s: tuple[float, ...]
    replies: tuple[bytes, ...]
    tally: Tally = Tally()

    @property
    def commands_per_batch(self) -> float:
        """How many commands workers have taken at once; 0.0 without workers."""
        return self.tally.taken / self.tally.batches if self.tally.batches else 0.0

    @property
    def commands_per_commit(self) -> float:
        """Fewer than in a batch where the commands of a job that another worker holds are decided by themselves.

        0.0 where the database does not count.
        """
        return len(self.replies) / self.tally.commits if self.tally.commits else 0.0

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
    """A way to somebody who answers; ``pids`` are the processes on it, by name.

    ``workers`` count batches, ``commits`` says how many commits the database has counted.
    """

    amqp_url: str
    pids: Mapping[str, Sequence[int]]
    database_url: str | None = None
    workers: Sequence[WorkerProcess] = ()
    commits: Callable[[], int] | None = None

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
            yield Journeys(route=self, rpc=rpc, store=store)


@dataclass(kw_only=True)
class Journeys:
    """Sends commands along a route."""

    route: Route
    rpc: RpcClient
    store: SqlStore | None = None

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

    async def counted(self, metric: str) -> float:
        """A metric of all workers together."""
        return sum([await asyncio.to_thread(worker.metric, metric) for worker in self.route.workers])

    async def tally(self) -> Tally:
        """What has been counted so far."""
        return Tally(
            taken=await self.counted("bso_batch_commands_sum"),
            batches=await self.counted("bso_batch_commands_count"),
            commits=await asyncio.to_thread(self.route.commits) if self.route.commits else 0,
        )

    async def settled(self) -> None:
        """Wait until everything that was decided is published, and marked so."""
        if self.store is not None:
            await eventually_async(self._is_settled, timeout_s=TIMEOUT_S)

    async def _is_settled(self) -> bool:
        assert self.store is not None
        return not (await self.store.unpublished(older_than_s=0.0, limit=1)).events


class Window:
    """Measures what goes along some routes, which lead to one database, inside ``async with``."""

    def __init__(self, routes: Sequence[Journeys]) -> None:
        self._routes = routes
        pids: dict[str, set[int]] = {}
        for journeys in routes:
            for name, some in journeys.route.pids.items():
                pids.setdefault(name, set()).update(some)
        self._watch = Stopwatch(**pids)

    async def __aenter__(self) -> Self:
        self._before = await self._tallies()
        self._watch.__enter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._watch.__exit__()
        if kind is None:
            for journeys in self._routes:
                await journeys.settled()
            self._elapsed = self._watch.include_others()
            self._after = await self._tallies()

    def driven(self, latencies_s: Sequence[float], replies: Sequence[bytes]) -> Driven:
        """What was met in it."""
        both = list(zip(self._before, self._after, strict=True))
        tally = Tally(
            taken=sum(after.taken - before.taken for before, after in both),
            batches=sum(after.batches - before.batches for before, after in both),
            commits=both[0][1].commits - both[0][0].commits,
        )
        return Driven(elapsed=self._elapsed, latencies_s=tuple(latencies_s), replies=tuple(replies), tally=tally)

    async def _tallies(self) -> list[Tally]:
        return [await journeys.tally() for journeys in self._routes]


async def drive(shares: Sequence[tuple[Journeys, Sequence[Reporter]]], calls: int) -> Driven:
    """Send reports on all lanes at once, each along its own route; so many in all."""
    each = max(1, calls // sum(len(lanes) for _, lanes in shares))
    messages = [(journeys, [_message(lane) for _ in range(each)]) for journeys, lanes in shares for lane in lanes]
    async with Window([journeys for journeys, _ in shares]) as window:
        found = await asyncio.gather(*(one_after_the_other(lane, journeys.send) for journeys, lane in messages))
    latencies_s, replies = zip(*(one for lane in found for one in lane), strict=True)
    return window.driven(latencies_s, replies)


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
