"""A report on its whole way, from its bytes in a client to the bytes of its reply; beside the peer, and the floors."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from time import perf_counter
from typing import Any

import asyncmy
from sqlalchemy import make_url

from bso.schema.codec import decode_reply
from tests.benchmarks.figures import Figure, Figures, percentile, spread_of
from tests.benchmarks.journeys import Driven, Journeys, Route
from tests.benchmarks.laboratory import Laboratory, pid_of, run
from tests.benchmarks.lanes import Lane, check_judged, open_lanes
from tests.benchmarks.machine import Stopwatch
from tests.benchmarks.zeus.peer import ZeusJourneys

JOBS = 20
CALLS = {1: 150, 8: 800, 64: 2560, 256: 5120}
"""Calls per repetition, by how many are under way at once."""
WORKERS = (1, 2)

Path = tuple[str, int]
"""What decides, and how many processes of it."""

Drive = Callable[[int, int], Awaitable[Driven]]


def measure(laboratory: Laboratory) -> list[Figure]:
    """Decisions per second, latencies and CPU time per decision, by how many commands are under way.

    The paths take turns: one and two workers, Zeus' server, an echo over the same queue (``floor_echo``), and a durable
    transaction of one row with the bare driver (``floor_transaction``).
    """
    figures = Figures(benchmark="rpc")
    run(_measure(laboratory, figures))
    return figures.found


async def _measure(laboratory: Laboratory, figures: Figures) -> None:
    async with AsyncExitStack() as stack:
        paths: dict[Path, Drive] = {}
        lanes: list[Lane] = []
        for workers in WORKERS:
            journeys = await _bso(laboratory, stack, workers)
            lanes = await open_lanes(journeys.ask, max(CALLS), jobs=JOBS)
            paths["bso", workers] = partial(_decided, journeys, lanes)
        paths["floor_echo", 1] = partial(_echoed, await _echo(laboratory, stack), lanes)
        paths["floor_transaction", 0] = await _transactions(laboratory, stack)
        try:
            paths["zeus", 1] = await _zeus(laboratory, stack)
        except (OSError, subprocess.SubprocessError, AssertionError) as error:
            laboratory.say(f"  Zeus' server is not measured: {error}")
        for in_flight, usual in CALLS.items():
            found: dict[Path, list[Driven]] = {path: [] for path in paths}
            for _ in range(laboratory.effort.repetitions):
                for path, drive in paths.items():
                    found[path].append(await drive(in_flight, laboratory.effort.of(usual)))
            for path, driven in found.items():
                _report(figures, path, in_flight, driven, found.get(("zeus", 1), []))
                laboratory.rows.append(_row(path, in_flight, driven))


async def _bso(laboratory: Laboratory, stack: AsyncExitStack, workers: int) -> Journeys:
    amqp_url = laboratory.rabbitmq.create_vhost()
    database_url = await asyncio.to_thread(laboratory.new_database)
    crew = await asyncio.to_thread(laboratory.start_workers, workers, amqp_url=amqp_url, database_url=database_url)
    pids = {
        "worker": [worker.process.pid for worker in crew],
        "broker": [pid_of(laboratory.rabbitmq)],
        "database": [pid_of(laboratory.mariadb)],
    }
    route = Route(amqp_url=amqp_url, pids=pids, database_url=database_url)
    return await stack.enter_async_context(route.opened())


async def _decided(journeys: Journeys, lanes: Sequence[Lane], in_flight: int, calls: int) -> Driven:
    driven = await journeys.drive(lanes[:in_flight], calls)
    check_judged([decode_reply(reply) for reply in driven.replies])
    return driven


async def _echo(laboratory: Laboratory, stack: AsyncExitStack) -> Journeys:
    amqp_url = laboratory.rabbitmq.create_vhost()
    echo = await asyncio.to_thread(laboratory.start_program, "tests.benchmarks.echo", amqp_url=amqp_url)
    pids = {"worker": [echo.process.pid], "broker": [pid_of(laboratory.rabbitmq)]}
    return await stack.enter_async_context(Route(amqp_url=amqp_url, pids=pids).opened())


async def _echoed(journeys: Journeys, lanes: Sequence[Lane], in_flight: int, calls: int) -> Driven:
    return await journeys.drive(lanes[:in_flight], calls)


async def _zeus(laboratory: Laboratory, stack: AsyncExitStack) -> Drive:
    server, port = await asyncio.to_thread(laboratory.start_zeus)
    pids = {"worker": [server.process.pid], "database": [pid_of(laboratory.mariadb)]}
    journeys = ZeusJourneys(port, pids)
    stack.push_async_callback(journeys.close)
    await journeys.open(max(CALLS), jobs=JOBS)
    return journeys.drive


async def _transactions(laboratory: Laboratory, stack: AsyncExitStack) -> Drive:
    """One row and a commit that is on the disk, by the bare driver, on as many connections as are in flight."""
    url = make_url(laboratory.mariadb.create_database())
    login: dict[str, Any] = {
        "host": url.host,
        "port": url.port or 3306,
        "user": url.username,
        "password": url.password or "",
    }
    pool = await asyncmy.create_pool(minsize=0, maxsize=max(CALLS), db=url.database, **login)
    stack.push_async_callback(pool.wait_closed)
    stack.callback(pool.close)
    async with pool.acquire() as connection, connection.cursor() as cursor:
        await cursor.execute("CREATE TABLE floor (number BIGINT AUTO_INCREMENT PRIMARY KEY, text VARCHAR(400))")
    pids = {"database": [pid_of(laboratory.mariadb)]}
    return partial(_committed, pool, pids)


async def _committed(pool: Any, pids: dict[str, list[int]], in_flight: int, calls: int) -> Driven:
    async def one_lane() -> list[float]:
        latencies_s = []
        async with pool.acquire() as connection, connection.cursor() as cursor:
            for _ in range(max(1, calls // in_flight)):
                began_s = perf_counter()
                await cursor.execute(f"INSERT INTO floor (text) VALUES ('{'x' * 400}')")
                await connection.commit()
                latencies_s.append(perf_counter() - began_s)
        return latencies_s

    with Stopwatch(**pids) as watch:
        found = await asyncio.gather(*(one_lane() for _ in range(in_flight)))
    latencies_s = tuple(one for lane in found for one in lane)
    return Driven(elapsed=watch.include_others(), latencies_s=latencies_s, replies=(b"",) * len(latencies_s))


_Quantities = dict[str, tuple[str, Callable[[Driven], float]]]
_QUANTITIES: _Quantities = {
    "decisions": ("1/s", lambda one: one.rate),
    "latency, half": ("ms", lambda one: percentile(one.latencies_s, 0.5) * 1e3),
    "latency, 99 %": ("ms", lambda one: percentile(one.latencies_s, 0.99) * 1e3),
    "client CPU per decision": ("us", lambda one: one.cpu_us()),
}


def _report(figures: Figures, path: Path, in_flight: int, driven: Sequence[Driven], zeus: Sequence[Driven]) -> None:
    name, workers = path
    case = f"{in_flight} in flight, {name}{f', {workers} workers' if workers > 1 else ''}"
    cpu: _Quantities = {
        f"{process} CPU per decision": ("us", partial(Driven.cpu_us, name=process))
        for process in driven[0].elapsed.others_s
    }
    for quantity, (unit, value) in {**_QUANTITIES, **cpu}.items():
        others = [value(one) for one in zeus] if "broker" not in quantity else []
        peer = "" if name == "zeus" else "zeus"
        figures.add(case, quantity, unit, list(map(value, driven)), peer=peer, peer_values=others if peer else ())


def _row(path: Path, in_flight: int, driven: Sequence[Driven]) -> dict[str, Any]:
    name, workers = path
    processes = {"client": None, **{process: process for process in driven[0].elapsed.others_s}}
    cpu_us = {key: _spread([one.cpu_us(process) for one in driven]) for key, process in processes.items()}
    return {
        "path": name,
        "in_flight": in_flight,
        "workers": workers,
        "per_second": _spread([one.rate for one in driven]),
        "p50_ms": _spread([percentile(one.latencies_s, 0.5) * 1e3 for one in driven]),
        "p99_ms": _spread([percentile(one.latencies_s, 0.99) * 1e3 for one in driven]),
        "cpu_us": cpu_us,
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    spread = spread_of(values)
    return {"median": spread.middle, "min": spread.least, "max": spread.greatest}
