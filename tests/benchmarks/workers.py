"""Whole trials of several jobs, from registration to model, by one, two and four workers and under both policies."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from bso.domain.commands import Command
from bso.domain.replies import Problem, Reply
from bso.policies import DEFAULT
from bso.policies.pruning_thompson.memory import NAME as PRUNING_THOMPSON
from bso.storage import open_store
from tests.benchmarks.figures import Figure, Figures
from tests.benchmarks.journeys import Driven, Journeys, Window
from tests.benchmarks.laboratory import Crew, Laboratory, run
from tests.benchmarks.lanes import request
from tests.benchmarks.rows import row_of, tell
from tests.integration.workers.recurrences import audit, new_job, recur_at_once, register

JOBS = 20
IN_FLIGHT = 64
TRIALS = 120
"""Per repetition and load."""

REPETITIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many crews' loads at once: with as many workers, each of them has as much to do as one alone."""

    workers: int
    times: int
    policy: str = DEFAULT

    @property
    def case(self) -> str:
        """In words."""
        crew = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"{crew}, {self.times * IN_FLIGHT} in flight, {self.times * JOBS} jobs, {self.policy}"


LOADS = (
    Load(workers=1, times=1),
    Load(workers=1, times=1, policy=PRUNING_THOMPSON),
    Load(workers=2, times=1),
    Load(workers=4, times=1),
    Load(workers=2, times=2),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """What a crew has done in one repetition."""

    driven: Driven
    conflicts: float
    kept: int


def measure(laboratory: Laboratory) -> list[Figure]:
    """Decisions per second, CPU time per decision, conflicts; at the end every job's log and tables are audited."""
    figures = Figures(benchmark="workers")
    shifts: dict[Load, list[Shift]] = {load: [] for load in LOADS}
    jobs = {load: [new_job() for _ in range(load.times * JOBS)] for load in LOADS}
    for _ in range(min(REPETITIONS, laboratory.effort.repetitions)):
        for load in LOADS:
            trials = laboratory.effort.of(TRIALS * load.times)
            crew = laboratory.crew(load.workers)
            shifts[load].append(run(_work(laboratory, crew, jobs[load], load, trials=trials)))
    for load in LOADS:
        audited = run(_audited(laboratory.crew(load.workers), jobs[load]))
        laboratory.say(f"  {load.case}: {audited} trials audited: numbers dense, logs and tables agree")
        _report(laboratory, figures, load, shifts[load], shifts[LOADS[0]], audited=audited)
    return figures.found


async def _work(laboratory: Laboratory, crew: Crew, jobs: Sequence[str], load: Load, *, trials: int) -> Shift:
    async with crew.route.opened() as journeys:
        ask = _Asking(journeys)
        await asyncio.gather(*(register(ask, job, policy=load.policy) for job in jobs))
        conflicts, kept = await journeys.counted("bso_database_retries_total"), ask.kept
        driven = await laboratory.undisturbed(partial(_driven, ask, journeys, jobs, load, trials=trials))
        conflicts = await journeys.counted("bso_database_retries_total") - conflicts
        return Shift(driven=driven, conflicts=conflicts, kept=ask.kept - kept)


async def _driven(ask: "_Asking", journeys: Journeys, jobs: Sequence[str], load: Load, *, trials: int) -> Driven:
    """Whole trials; recurrences of a job overlap, so that all jobs together keep so many commands in flight."""
    ask.latencies_s.clear()
    each, rest = divmod(load.times * IN_FLIGHT, len(jobs))
    async with Window([journeys]) as window:
        await asyncio.gather(
            *(
                recur_at_once(ask, job, at_once=each + (number < rest), trials=max(1, trials // len(jobs)))
                for number, job in enumerate(jobs)
            )
        )
    return window.driven(ask.latencies_s, (b"",) * len(ask.latencies_s))


class _Asking:
    """Asks as the tests' trainings do, again where a worker asks for patience, and times the replies.

    ``kept`` is how often it had to: workers keep the commands of a job that others hold for seconds.
    """

    def __init__(self, journeys: Journeys) -> None:
        self._journeys = journeys
        self.kept = 0
        self.latencies_s: list[float] = []

    async def __call__(self, job_id: str, command: Command, *, command_id: str | None = None) -> Reply:
        assert command_id is None
        asked = request(job_id, command)
        began_s = perf_counter()
        while True:
            reply = await self._journeys.ask(asked)
            if not isinstance(reply, Problem) or reply.retry_after_s is None:
                break
            self.kept += 1
            await asyncio.sleep(reply.retry_after_s)
        self.latencies_s.append(perf_counter() - began_s)
        return reply


async def _audited(crew: Crew, jobs: Sequence[str]) -> int:
    assert crew.route.database_url is not None
    store = open_store(crew.route.database_url)
    try:
        return sum([await audit(store, job) for job in jobs])
    finally:
        await store.close()


def _report(
    laboratory: Laboratory,
    figures: Figures,
    load: Load,
    shifts: Sequence[Shift],
    alone: Sequence[Shift],
    *,
    audited: int,
) -> None:
    driven = [one.driven for one in shifts]
    peers = [] if shifts is alone else [one.driven for one in alone]
    tell(figures, load.case, driven, peer="the first of these", peers=peers)
    per_thousand = [one.conflicts / len(one.driven.replies) * 1000 for one in shifts]
    figures.add(load.case, "transactions tried again per 1000 decisions", "", per_thousand)
    figures.add(load.case, "commands kept for a while", "", [float(one.kept) for one in shifts])
    row = row_of("bso", driven, in_flight=load.times * IN_FLIGHT, workers=load.workers, case="whole trials")
    about = {
        "jobs": load.times * JOBS,
        "policy": load.policy,
        "audited_trials": audited,
        "kept": sum(one.kept for one in shifts),
    }
    laboratory.rows.append({**row, **about})
