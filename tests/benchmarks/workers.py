"""One, two and three workers under the same load: whole trials of several jobs, from registration to model."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from bso.domain.commands import Command
from bso.domain.replies import Reply
from bso.storage import open_store
from tests.benchmarks.figures import Figure, Figures
from tests.benchmarks.journeys import Journeys, Route
from tests.benchmarks.laboratory import Laboratory, pid_of, run
from tests.benchmarks.lanes import request
from tests.benchmarks.machine import Elapsed
from tests.integration.workers.processes import WorkerProcess
from tests.integration.workers.recurrences import audit, new_job, recur_at_once, register

JOBS = 20
IN_FLIGHT = 64
TRIALS = 120
"""Per repetition and load."""

REPETITIONS = 3


@dataclass(kw_only=True)
class Crew:
    """Workers with a queue and a database of their own."""

    workers: list[WorkerProcess]
    route: Route


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many crews' loads at once: with as many workers, each of them has as much to do as one alone."""

    workers: int
    times: int

    @property
    def case(self) -> str:
        """In words."""
        crew = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"{crew}, {self.times * IN_FLIGHT} in flight, {self.times * JOBS} jobs"


LOADS = (
    Load(workers=1, times=1),
    Load(workers=2, times=1),
    Load(workers=3, times=1),
    Load(workers=2, times=2),
    Load(workers=3, times=3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """What a crew has done in one repetition."""

    elapsed: Elapsed
    commands: int
    batches: float
    conflicts: float

    @property
    def worker_us(self) -> float:
        """CPU time of all workers together per decision."""
        return self.elapsed.others_s["worker"] / self.commands * 1e6


def measure(laboratory: Laboratory) -> list[Figure]:
    """Decisions per second, CPU time per decision, conflicts; at the end every job's log and tables are audited."""
    figures = Figures(benchmark="workers")
    crews = {count: _crew(laboratory, count) for count in sorted({load.workers for load in LOADS})}
    shifts: dict[Load, list[Shift]] = {load: [] for load in LOADS}
    jobs = {load: [new_job() for _ in range(load.times * JOBS)] for load in LOADS}
    for _ in range(min(REPETITIONS, laboratory.effort.repetitions)):
        for load in LOADS:
            trials = laboratory.effort.of(TRIALS * load.times)
            shifts[load].append(run(_work(crews[load.workers], jobs[load], load, trials=trials)))
    for load in LOADS:
        audited = run(_audited(crews[load.workers], jobs[load]))
        laboratory.say(f"  {load.case}: {audited} trials audited: numbers dense, logs and tables agree")
        _report(figures, load, shifts[load], shifts[LOADS[0]])
    return figures.found


def _crew(laboratory: Laboratory, count: int) -> Crew:
    amqp_url, database_url = laboratory.rabbitmq.create_vhost(), laboratory.new_database()
    workers = laboratory.start_workers(count, amqp_url=amqp_url, database_url=database_url)
    pids = {
        "worker": [worker.process.pid for worker in workers],
        "broker": [pid_of(laboratory.rabbitmq)],
        "database": [pid_of(laboratory.mariadb)],
    }
    return Crew(workers=workers, route=Route(amqp_url=amqp_url, pids=pids, database_url=database_url))


async def _work(crew: Crew, jobs: Sequence[str], load: Load, *, trials: int) -> Shift:
    async with crew.route.opened() as journeys:
        ask = _Asking(journeys)
        await asyncio.gather(*(register(ask, job) for job in jobs))
        batches, conflicts = _counted(crew, "bso_batch_commands_count"), _counted(crew, "bso_database_retries_total")
        sent = journeys.sent
        with journeys.watch() as watch:
            await asyncio.gather(*(_overlapping(ask, job, number, load, trials) for number, job in enumerate(jobs)))
        await journeys.settled()
        return Shift(
            elapsed=watch.include_others(),
            commands=journeys.sent - sent,
            batches=_counted(crew, "bso_batch_commands_count") - batches,
            conflicts=_counted(crew, "bso_database_retries_total") - conflicts,
        )


async def _overlapping(ask: "_Asking", job: str, number: int, load: Load, trials: int) -> int:
    """A job's share of the load: some of its recurrences overlap, so that all jobs together keep so many in flight."""
    each, rest = divmod(load.times * IN_FLIGHT, load.times * JOBS)
    return await recur_at_once(ask, job, at_once=each + (number < rest), trials=max(1, trials // (load.times * JOBS)))


class _Asking:
    """Asks as the tests' trainings do."""

    def __init__(self, journeys: Journeys) -> None:
        self._journeys = journeys

    async def __call__(self, job_id: str, command: Command, *, command_id: str | None = None) -> Reply:
        assert command_id is None
        return await self._journeys.ask(request(job_id, command))


def _counted(crew: Crew, metric: str) -> float:
    return sum(worker.metric(metric) for worker in crew.workers)


async def _audited(crew: Crew, jobs: Sequence[str]) -> int:
    assert crew.route.database_url is not None
    store = open_store(crew.route.database_url)
    try:
        return sum([await audit(store, job) for job in jobs])
    finally:
        await store.close()


def _report(figures: Figures, load: Load, shifts: Sequence[Shift], alone: Sequence[Shift]) -> None:
    case = load.case
    peer = "1 worker" if load.workers > 1 else ""
    rates, alone_rates = ([one.commands / one.elapsed.wall_s for one in some] for some in (shifts, alone))
    figures.add(case, "decisions", "1/s", rates, peer=peer, peer_values=alone_rates if peer else ())
    cpu, alone_cpu = ([one.worker_us for one in some] for some in (shifts, alone))
    figures.add(case, "workers' CPU per decision", "us", cpu, peer=peer, peer_values=alone_cpu if peer else ())
    figures.add(case, "decisions per batch", "", [one.commands / one.batches for one in shifts])
    per_thousand = [one.conflicts / one.commands * 1000 for one in shifts]
    figures.add(case, "transactions tried again per 1000 decisions", "", per_thousand)
