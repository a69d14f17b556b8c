"""Other loads than rpc's: one job, a job for each training, the other policy; and two workers beside one."""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bso.policies import DEFAULT
from bso.policies.pruning_thompson.memory import NAME as PRUNING_THOMPSON
from bso.schema.codec import decode_reply
from bso_broker.topology import CLASSIC, QUORUM
from tests.benchmarks.figures import Figure, Figures
from tests.benchmarks.journeys import Driven, Journeys, drive
from tests.benchmarks.laboratory import Laboratory, run
from tests.benchmarks.lanes import Lane, check_judged, open_lanes
from tests.benchmarks.rows import row_of, tell

CALLS_EACH = 20
"""Calls per repetition on each lane."""
LEAST_CALLS = 100
SHARED = 20
"""Jobs per worker, which many trainings share."""
ALONE = "one worker"

Shares = Sequence[tuple[Journeys, Sequence[Lane]]]
Window = Callable[[], Awaitable[Driven]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many reports in flight, of trainings of so many jobs.

    ``queues``: with two, each worker has its own, in a virtual host of its own, and half of the jobs; the database is
    the same. With one, any worker decides on any job. ``command_queue`` is their type.
    """

    case: str
    in_flight: int
    jobs: int
    workers: int = 1
    queues: int = 1
    policy: str = DEFAULT
    command_queue: str = QUORUM

    @property
    def words(self) -> str:
        """For the table."""
        return f"{self.case}, {self.in_flight} in flight{f', {self.workers} workers' if self.workers > 1 else ''}"


KINDS = (
    *(Load(case="one job", in_flight=number, jobs=1, workers=workers) for number in (8, 64, 256) for workers in (1, 2)),
    *(Load(case="a job for each training", in_flight=64, jobs=64, workers=workers) for workers in (1, 2)),
    Load(case=f"policy {PRUNING_THOMPSON}", in_flight=64, jobs=SHARED, policy=PRUNING_THOMPSON),
    *(
        Load(case=f"{command_queue} queue", in_flight=number, jobs=SHARED, command_queue=command_queue)
        for number in (1, 64)
        for command_queue in (QUORUM, CLASSIC)
    ),
)
# Two workers have twice as many reports in flight as one, so that their batches are about as large.
STAYING, SPREAD = "each job stays with one of two workers", "jobs are spread over two workers"
BY_ONE = tuple(Load(case=ALONE, in_flight=number, jobs=SHARED) for number in (2, 8, 64, 256))
BY_TWO = tuple(
    Load(case=case, in_flight=number, jobs=2 * SHARED, workers=2, queues=queues)
    for case, queues in ((STAYING, 2), (SPREAD, 1))
    for number in (128, 512)
)


def measure(laboratory: Laboratory) -> list[Figure]:
    """What each load costs; of two workers also beside one worker at as many commands per commit.

    A worker's CPU time per decision depends on how many commands a transaction holds more than on anything else. So two
    workers are compared with what one takes for transactions of their size, between the sizes at which it was measured.
    The database counts commits, those that mark events as published among them, about one a second.
    """
    figures = Figures(benchmark="loads")
    run(_measure(laboratory, figures))
    return figures.found


async def _measure(laboratory: Laboratory, figures: Figures) -> None:
    loads = (*KINDS, *BY_ONE, *BY_TWO)
    async with AsyncExitStack() as stack:
        found = await laboratory.in_turns(await _windows(laboratory, stack, loads))
    alone = [(_size(found[load]), _worker_us(found[load])) for load in BY_ONE]
    for load, driven in found.items():
        about: dict[str, Any] = {"jobs": load.jobs, "policy": load.policy}
        tell(figures, load.words, driven)
        if load in BY_TWO:
            beside = at_size(_size(driven), alone)
            about["one_worker_at_equal_commits_us"] = beside
            peer = "one worker at as many commands per commit"
            figures.add(load.words, "a worker's CPU", "us", [_worker_us(driven)], peer=peer, peer_values=[beside])
        row = row_of("bso", driven, in_flight=load.in_flight, workers=load.workers, case=load.case)
        laboratory.rows.append({**row, **about})


async def _windows(laboratory: Laboratory, stack: AsyncExitStack, loads: Sequence[Load]) -> dict[Load, Window]:
    """Begins the trainings of each load."""
    routes: dict[tuple[int, int, str], list[Journeys]] = {}
    windows: dict[Load, Window] = {}
    for load in loads:
        queues = (load.workers, load.queues, load.command_queue)
        if queues not in routes:
            routes[queues] = await _routes(laboratory, stack, load)
        shares = [
            (
                journeys,
                await open_lanes(
                    journeys.ask,
                    load.in_flight // load.queues,
                    jobs=load.jobs // load.queues,
                    at_once=min(64, load.in_flight),
                    policy=load.policy,
                ),
            )
            for journeys in routes[queues]
        ]
        calls = max(LEAST_CALLS, laboratory.effort.of(CALLS_EACH) * load.in_flight)
        windows[load] = partial(_decided, shares, calls)
    return windows


async def _routes(laboratory: Laboratory, stack: AsyncExitStack, load: Load) -> list[Journeys]:
    if load.command_queue != QUORUM:
        crews = [await asyncio.to_thread(laboratory.new_crew, load.workers, command_queue=load.command_queue)]
    elif load.queues == 1:
        crews = [await asyncio.to_thread(laboratory.crew, load.workers)]
    else:
        url = await asyncio.to_thread(laboratory.new_database)
        each = load.workers // load.queues
        crews = [await asyncio.to_thread(laboratory.new_crew, each, database_url=url) for _ in range(load.queues)]
    return [await stack.enter_async_context(crew.route.opened()) for crew in crews]


async def _decided(shares: Shares, calls: int) -> Driven:
    driven = await drive(shares, calls)
    check_judged([decode_reply(reply) for reply in driven.replies])
    return driven


def at_size(size: float, measured: Sequence[tuple[float, float]]) -> float:
    """A cost per command where transactions hold so many, from pairs of a size and the cost that was measured there.

    What a transaction costs is shared by its commands, so the cost is linear in 1 / size between two of them.
    """
    ordered = sorted((1 / one, cost) for one, cost in measured)
    return float(np.interp(1 / size, [place for place, _ in ordered], [cost for _, cost in ordered]))


def _size(driven: Sequence[Driven]) -> float:
    return statistics.median(one.commands_per_commit for one in driven)


def _worker_us(driven: Sequence[Driven]) -> float:
    return statistics.median(one.cpu_us("worker") for one in driven)
