"""What one simulated job shows, in terms of what is true: what its choices cost on the average, the noise apart."""

import math
from dataclasses import dataclass

from bso.simulator import BatchSizeProblem, Run, parse_drift, parse_noise, simulate
from bso.simulator.truths import Family
from bso.simulator.world import World
from tests.benchmarks.decisions.round_robin import ROUND_ROBIN, round_robin
from tests.benchmarks.decisions.worlds import MadeWorld

RECURRENCES = 60
AT = 30
"""Most figures are those of this recurrence; no policy knows of it."""
RECENT = 5
COSTLIER = 1.10
"""A job is harmed where what is believed best is truly more than so many times as costly as its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """One job under one policy; excesses are shares of the true cost of the best batch size.

    ``recent``: of the five trials that began last before recurrence 30. ``believed``: of the batch size taken for the
    best one, after each recurrence. ``wasted``: trainings until recurrence 30, at true prices. ``wasted_as_paid``: the
    same above a job that always runs the best batch size with the same luck. ``over_default``: the true cost of the
    batch size taken for the best one in the end, over that of the default, less 1.
    ``expected``: the expected cost of it after each recurrence over its true cost then (NaN: nothing expected).
    """

    world: str
    family: str
    policy: str
    seed: int
    recent: float
    believed: tuple[float, ...]
    wasted: float
    wasted_as_paid: float
    over_default: float
    expected: tuple[float, ...]
    trials: int
    change_points: int

    @property
    def is_flat(self) -> bool:
        """Whether all batch sizes cost the same, or nearly so."""
        return self.family == Family.FLAT.value

    @property
    def is_harmed(self) -> bool:
        """Whether it ends with a batch size that is much costlier than its default."""
        return 1.0 + self.over_default > COSTLIER


def job_figures(made: MadeWorld, policy: str, seed: int) -> JobFigures:
    """Simulate a job of a made world."""
    problem = made.problem(seed)
    drift, noise = parse_drift(made.drift), parse_noise(made.noise)
    world = World(problem=problem, seed=seed, eta_knob=0.5, drift=drift, noise=noise)
    if policy == ROUND_ROBIN:
        sizes, known = round_robin(world, RECURRENCES)
        recent, wasted, wasted_as_paid = list(sizes), math.nan, math.nan
        expected = (math.nan,) * RECURRENCES
        trials = change_points = 0
    else:
        run = simulate(problem, {"policy": policy}, recurrences=RECURRENCES, seed=seed, drift=drift, noise=noise)
        recent = _begun(run, problem)
        known = [each.batch_size for each in run.best_known]
        wasted, wasted_as_paid = _wasted(run, world), run.regret(AT)
        expected = tuple(
            math.nan if each.expected_cost is None else each.expected_cost / _cost(world, each.batch_size, number)
            for number, each in enumerate(run.best_known, start=1)
        )
        trials, change_points = len(run.trials), run.change_points
    return JobFigures(
        world=made.name,
        family=made.family.value,
        policy=policy,
        seed=seed,
        recent=sum(_excess(world, size, AT) for size in recent[-RECENT:]) / len(recent[-RECENT:]),
        believed=tuple(_excess(world, size, number) for number, size in enumerate(known, start=1)),
        wasted=wasted,
        wasted_as_paid=wasted_as_paid,
        over_default=_cost(world, known[-1], RECURRENCES) / _cost(world, problem.default_batch_size, RECURRENCES) - 1.0,
        expected=expected,
        trials=trials,
        change_points=change_points,
    )


def _begun(run: Run, problem: BatchSizeProblem) -> list[int]:
    """The batch sizes of the trials of the first 29 recurrences that cost anything, in their order."""
    trials = sorted(run.trials, key=lambda trial: trial.trial_number)
    return [one.batch_size for one in trials if one.recurrence < AT and one.batch_size not in problem.infeasible]


def _wasted(run: Run, world: World) -> float:
    spent = sum(
        trial.epochs
        * world.cost(world.price(trial.batch_size, trial.recurrence), trial.recurrence)
        / _best(world, trial.recurrence)
        for trial in run.trials
        if trial.recurrence <= AT
    )
    return spent - AT


def _excess(world: World, size: int, recurrence: int) -> float:
    return _cost(world, size, recurrence) / _best(world, recurrence) - 1.0


def _best(world: World, recurrence: int) -> float:
    return _cost(world, world.best_batch_size(recurrence), recurrence)


def _cost(world: World, size: int, recurrence: int) -> float:
    return world.expected(size, recurrence).cost
