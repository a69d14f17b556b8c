"""The life of a worker: how long it takes to start and to drain, and whether its memory grows with what it decides."""

import asyncio
import os
from dataclasses import dataclass
from time import perf_counter

from bso.schema.codec import decode_reply
from tests.benchmarks.figures import Figure, Figures
from tests.benchmarks.journeys import Journeys
from tests.benchmarks.laboratory import Crew, Laboratory, run
from tests.benchmarks.lanes import Lane, Turns, check_judged, open_lanes
from tests.benchmarks.machine import cpu_of_tree_s, resident_mb
from tests.benchmarks.rows import spread
from tests.integration.workers.processes import WorkerProcess
from tests.servers import PATIENCE_S

IN_FLIGHT, JOBS = 64, 20
WARM_AFTER = 10
"""Batches that a worker has decided before it receives SIGTERM."""

MESSAGES, POINTS = 1_000_000, 10
MOST_S = 900
"""A slow machine sends fewer messages."""
MANY_JOBS, AT_ONCE = 1_536, 256
"""More jobs than a worker keeps in its memory, which are 1 024; so many of them report at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """What one worker took."""

    start_s: float
    start_cpu_s: float
    drain_s: float


def measure(laboratory: Laboratory) -> list[Figure]:
    """Process start until ready, on a machine without load; SIGTERM until exit, under load; memory by messages.

    Another worker goes on meanwhile, and every command is answered.
    """
    figures = Figures(benchmark="lifecycle")
    crew = laboratory.crew(1)
    lives = [run(_life(laboratory, crew)) for _ in range(laboratory.effort.repetitions)]
    quantities = {
        "start-up": ("ms", [one.start_s * 1e3 for one in lives]),
        "start-up, CPU": ("cpu_ms", [one.start_cpu_s * 1e3 for one in lives]),
        "drain": ("ms", [one.drain_s * 1e3 for one in lives]),
    }
    for case, (unit, values) in quantities.items():
        figures.add(case, "time", "ms", values)
        in_flight = IN_FLIGHT if case == "drain" else 0
        laboratory.rows.append(
            {"path": "worker", "case": case, "in_flight": in_flight, "workers": 1, unit: spread(values)}
        )
    run(_memory(laboratory, figures))
    return figures.found


async def _life(laboratory: Laboratory, crew: Crew) -> Lived:
    assert crew.route.database_url is not None
    async with crew.route.opened() as journeys:
        lanes = await open_lanes(journeys.ask, IN_FLIGHT, jobs=JOBS)
        began_s = perf_counter()
        worker = laboratory.start_worker(amqp_url=crew.route.amqp_url, database_url=crew.route.database_url)
        await asyncio.to_thread(worker.ready)
        start_s, start_cpu_s = perf_counter() - began_s, cpu_of_tree_s(worker.process.pid)
        return Lived(start_s=start_s, start_cpu_s=start_cpu_s, drain_s=await _drain_s(journeys, lanes, worker))


async def _drain_s(journeys: Journeys, lanes: list[Lane], worker: WorkerProcess) -> float:
    is_over = asyncio.Event()

    async def load() -> None:
        while not is_over.is_set():
            driven = await journeys.drive(lanes, 8 * IN_FLIGHT)
            check_judged([decode_reply(reply) for reply in driven.replies])

    async with asyncio.TaskGroup() as group:
        group.create_task(load())
        await asyncio.to_thread(worker.until, lambda: worker.metric("bso_batch_commands_count") >= WARM_AFTER)
        began_s = perf_counter()
        worker.terminate()
        await _ended(worker.process.pid)
        drain_s = perf_counter() - began_s
        is_over.set()
    assert worker.wait() == 0, worker.text()
    return drain_s


async def _ended(pid: int) -> None:
    """Wait until a child has ended, to the millisecond. Raises TimeoutError."""
    has_ended, handle = asyncio.Event(), os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    loop.add_reader(handle, has_ended.set)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await has_ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


async def _memory(laboratory: Laboratory, figures: Figures) -> None:
    crew = await asyncio.to_thread(laboratory.new_crew, 1)
    pid = crew.workers[0].process.pid
    total, most_s = laboratory.effort.of(MESSAGES), laboratory.effort.of(MOST_S)
    async with crew.route.opened() as journeys:
        lanes = await open_lanes(journeys.ask, MANY_JOBS, jobs=MANY_JOBS, at_once=IN_FLIGHT)
        turns = [Turns(lanes[first::AT_ONCE]) for first in range(AT_ONCE)]
        sent, taken_s = 2 * MANY_JOBS, 0.0
        while True:
            resident = resident_mb(pid)
            figures.add(f"memory after {sent} messages", "RAM", "MB", [resident])
            about = {"path": "worker", "case": "memory", "in_flight": AT_ONCE, "workers": 1, "jobs": MANY_JOBS}
            laboratory.rows.append({**about, "messages": sent, "rss_mb": spread([resident])})
            if sent >= total or taken_s > most_s:
                return
            driven = await journeys.drive(turns, total // POINTS)
            check_judged([decode_reply(reply) for reply in driven.replies])
            sent, taken_s = sent + len(driven.replies), taken_s + driven.elapsed.wall_s
