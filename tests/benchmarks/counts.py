"""What a decision sends: requests to the database and AMQP frames, counted by proxies between the processes."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from bso.service.answers import Answer
from bso.service.engine import Engine
from bso.storage import open_store
from tests.benchmarks.amqp_frames import FrameCounts
from tests.benchmarks.engine import new_lanes
from tests.benchmarks.figures import Figure, Figures
from tests.benchmarks.journeys import Route
from tests.benchmarks.laboratory import Laboratory, pid_of, run
from tests.benchmarks.lanes import Lane, batches, check_judged, open_lanes
from tests.benchmarks.rows import spread
from tests.benchmarks.rpc import decided
from tests.servers import TcpProxy

JOBS = 20
CALLS = {1: 200, 64: 2_560}
SIZES, BATCHES = (1, 32), 20
WARM_UP = 8
"""Batches after which an engine that decides alone reads no more."""


@dataclass(kw_only=True)
class Wires:
    """The proxies around one worker: of its database, of its broker, and of the client's broker."""

    database: TcpProxy
    worker: FrameCounts = field(default_factory=FrameCounts)
    client: FrameCounts = field(default_factory=FrameCounts)

    def counted(self) -> dict[str, int]:
        """What has gone over them so far."""
        by_side = {"worker": self.worker.totals, "client": self.client.totals}
        frames = {f"{side}_{way}": count for side, totals in by_side.items() for way, count in totals.items()}
        return {"sql_round_trips": self.database.requests, **frames}


def measure(laboratory: Laboratory) -> list[Figure]:
    """Requests to the database and frames per decision, of a batch alone and of a worker.

    A worker's counts hold what it does beside deciding: marking events as published, looking for forgotten ones and for
    lapsed leases.
    """
    figures = Figures(benchmark="counts")
    run(_measure(laboratory, figures))
    return figures.found


async def _measure(laboratory: Laboratory, figures: Figures) -> None:
    for size in SIZES:
        await _of_batches(laboratory, figures, size)
    async with AsyncExitStack() as stack:
        database_url = await asyncio.to_thread(laboratory.new_database)
        amqp_url = laboratory.rabbitmq.create_vhost()
        wires = Wires(database=stack.enter_context(TcpProxy(database_url)))
        of_worker = stack.enter_context(TcpProxy(amqp_url, watch=wires.worker.watch))
        of_client = stack.enter_context(TcpProxy(amqp_url, watch=wires.client.watch))
        worker = laboratory.start_worker(amqp_url=of_worker.url, database_url=wires.database.url)
        stack.callback(worker.stop)
        await asyncio.to_thread(worker.ready)
        pids = {"worker": [worker.process.pid], "broker": [pid_of(laboratory.rabbitmq)]}
        route = Route(amqp_url=of_client.url, pids=pids, database_url=database_url, workers=[worker])
        journeys = await stack.enter_async_context(route.opened())
        lanes = await open_lanes(journeys.ask, max(CALLS), jobs=JOBS)
        await journeys.settled()
        for in_flight, usual in CALLS.items():
            found: dict[str, list[float]] = {}
            for _ in range(laboratory.effort.repetitions):
                before = wires.counted()
                driven = await decided(journeys, lanes, in_flight, laboratory.effort.of(usual))
                counts = {name: count - before[name] for name, count in wires.counted().items()}
                for name, count in counts.items():
                    found.setdefault(name, []).append(count / len(driven.replies))
                found.setdefault("commands_per_batch", []).append(driven.commands_per_batch)
                found.setdefault("sql_round_trips_per_batch", []).append(
                    counts["sql_round_trips"] / driven.tally.batches
                )
            _tell(laboratory, figures, found, path="bso", in_flight=in_flight, workers=1)


async def _of_batches(laboratory: Laboratory, figures: Figures, size: int) -> None:
    """Batches of one size, decided here."""
    with TcpProxy(await asyncio.to_thread(laboratory.new_database)) as database:
        store = open_store(database.url)
        try:
            engine = Engine(store, optimistic=store.optimistic)
            lanes = await new_lanes(engine, max(SIZES), jobs=JOBS)
            await _decide(engine, lanes, size=size, count=WARM_UP)
            before = database.requests
            await _decide(engine, lanes, size=size, count=BATCHES)
            per_batch = (database.requests - before) / BATCHES
        finally:
            await store.close()
    found = {
        "sql_round_trips": [per_batch / size],
        "sql_round_trips_per_batch": [per_batch],
        "commands_per_batch": [float(size)],
    }
    _tell(laboratory, figures, found, path="engine_mariadb", in_flight=size, workers=0)


async def _decide(engine: Engine, lanes: list[Lane], *, size: int, count: int) -> None:
    """As a worker does: without waiting for jobs that another one holds."""
    for batch in batches(lanes, size=size, count=count):
        answers = await engine.attempt(batch)
        check_judged([answer.reply for answer in answers if isinstance(answer, Answer)])
        assert len(answers) == size


def _tell(
    laboratory: Laboratory, figures: Figures, found: dict[str, list[float]], *, path: str, in_flight: int, workers: int
) -> None:
    for name, values in found.items():
        figures.add(f"{path}, {in_flight} in flight", name.replace("_", " "), "", values)
    row = {"path": path, "case": "counted", "in_flight": in_flight, "workers": workers}
    laboratory.rows.append({**row, **{name: spread(values) for name, values in found.items()}})
