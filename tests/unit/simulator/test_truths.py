"""Made problems: their truth comes true in the simulator, whatever is drawn."""

import math

import pytest

from bso.domain.decide.decision import POLICIES
from bso.domain.trial import Outcome
from bso.simulator import parse_noise, simulate
from bso.simulator.truths import Family, Start, made_problem, made_problems
from bso.simulator.world import World

SEEDS = range(20)


def costs(family: Family, seed: int, start: Start = Start.MIDDLE) -> dict[int, float]:
    """What a model of each batch size costs, those that do not fit left out."""
    problem = made_problem(family, start, seed)
    world = World(problem=problem, seed=0, eta_knob=0.5)
    found = {size: world.expected(size, 1).cost for size in problem.batch_sizes}
    return {size: cost for size, cost in found.items() if math.isfinite(cost)}


def valleys(values: list[float]) -> int:
    """Places that are cheaper than what is beside them."""
    around = [math.inf, *values, math.inf]
    return sum(around[i - 1] > around[i] < around[i + 1] for i in range(1, len(around) - 1))


@pytest.mark.parametrize("seed", SEEDS)
def test_each_family_has_its_shape(seed: int) -> None:
    falling, rising = list(costs(Family.FALLING, seed).values()), list(costs(Family.RISING, seed).values())
    assert falling == sorted(falling, reverse=True)
    assert rising == sorted(rising)
    flat = costs(Family.FLAT, seed).values()
    assert max(flat) / min(flat) < 1.041
    assert valleys(list(costs(Family.VALLEY, seed).values())) == 1
    assert valleys(list(costs(Family.TWO_VALLEYS, seed).values())) == 2
    cliff = costs(Family.CLIFF, seed)
    sizes = made_problem(Family.CLIFF, Start.MIDDLE, seed).batch_sizes
    assert list(cliff.values()) == sorted(cliff.values(), reverse=True)
    assert tuple(cliff) == sizes[: len(cliff)] != sizes


@pytest.mark.parametrize("family", Family)
def test_the_default_is_the_cheapest_a_middle_or_the_costliest_that_fits(family: Family) -> None:
    found = costs(family, 3)
    defaults = {start: made_problem(family, start, 3).default_batch_size for start in Start}
    assert found[defaults[Start.CHEAPEST]] == min(found.values())
    assert found[defaults[Start.COSTLIEST]] == max(found.values())
    assert defaults[Start.MIDDLE] == list(found)[len(found) // 2]


def test_the_same_seed_gives_the_same_problem_and_others_differ() -> None:
    assert made_problems(1) == made_problems(1)
    assert len({problem.name for problem in made_problems(1)}) == len(Family) * len(Start)
    assert len({made_problem(Family.VALLEY, Start.MIDDLE, seed).max_power_w for seed in SEEDS}) == 1
    assert len({tuple(costs(Family.VALLEY, seed).values()) for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("family", Family)
def test_a_job_recurs_on_each_of_them(family: Family, policy: str) -> None:
    problem = made_problem(family, Start.MIDDLE, 5)
    run = simulate(problem, {"policy": policy}, recurrences=30, seed=2, noise=parse_noise("run:0.3"))
    assert len(run.batch_sizes) == 30
    for trial in run.trials:
        assert (trial.outcome is Outcome.INFEASIBLE) == (trial.batch_size in problem.infeasible)


def test_what_does_not_fit_ends_at_once_and_is_hardly_tried_again() -> None:
    problem = made_problem(Family.CLIFF, Start.CHEAPEST, 1)
    run = simulate(problem, recurrences=40, seed=2)
    ended = [trial for trial in run.trials if trial.outcome is Outcome.INFEASIBLE]
    assert 1 <= len(ended) <= 3
    assert {(trial.epochs, trial.cost) for trial in ended} == {(0, 0.0)}
