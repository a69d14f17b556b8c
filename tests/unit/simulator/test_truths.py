"""Made problems: their truth comes true in the simulator, whatever is drawn."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from bso.domain.policies import own_policies
from bso.domain.trial import Outcome
from bso.simulator import BatchSizeProblem, InvalidSimulation, parse_changes, parse_drift, parse_noise, simulate
from bso.simulator.truths import OTHER_GPU, Family, Start, made_problem, made_problems
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


@pytest.mark.parametrize("policy", own_policies())
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


@pytest.mark.parametrize("drift", ["optimum@2", "optimum:-3@2"])
def test_what_does_not_fit_is_never_the_best_even_where_the_optimum_moves(drift: str) -> None:
    for seed in SEEDS:
        problem = made_problem(Family.CLIFF, Start.MIDDLE, seed)
        world = World(problem=problem, seed=0, eta_knob=0.5, drift=parse_drift(drift))
        finite = {size for size in problem.batch_sizes if math.isfinite(world.expected(size, 2).cost)}
        assert finite == set(problem.batch_sizes) - problem.infeasible


def epoch_costs(problem: BatchSizeProblem, recurrence: int) -> list[float]:
    """What an epoch of each batch size costs."""
    world = World(problem=problem, seed=0, eta_knob=0.5)
    return [world.cost(world.price(size, recurrence), recurrence) for size in problem.batch_sizes]


def other_gpu(family: Family, seed: int) -> list[float]:
    """Ln of how many times as much an epoch of each batch size costs on the other GPU."""
    problem = made_problem(family, Start.MIDDLE, seed, changes=parse_changes(move_from=f"{OTHER_GPU}@30"))
    pairs = zip(epoch_costs(problem, 29), epoch_costs(problem, 30), strict=True)
    return [math.log(there / here) for there, here in pairs]


def test_the_other_gpu_has_another_level_and_nearly_the_same_shape() -> None:
    every = [other_gpu(family, seed) for family in Family for seed in SEEDS]
    levels = [sum(ratios) / len(ratios) for ratios in every]
    assert -1.7 < min(levels) < -1.2
    assert 1.2 < max(levels) < 1.7
    shapes = [each - level for ratios, level in zip(every, levels, strict=True) for each in ratios]
    assert 0.1 < math.sqrt(sum(shape**2 for shape in shapes) / len(shapes)) < 0.4
    assert len({tuple(ratios) for ratios in every}) == len(every)
    assert all(abs(one - other) < 0.5 for ratios in every for one, other in pairwise(ratios)), (
        "no batch size stands out"
    )


def test_a_move_changes_prices_and_power_and_leaves_the_problem_as_it_is_in_the_end() -> None:
    usual = made_problem(Family.VALLEY, Start.CHEAPEST, 4)
    problem = made_problem(Family.VALLEY, Start.CHEAPEST, 4, changes=parse_changes(move_from="made-2@30"))
    before = problem.at(29)
    assert replace(problem, earlier=()) == usual
    assert (before.gpu, before.runs, before.infeasible) == (OTHER_GPU, usual.runs, usual.infeasible)
    assert 50 <= before.max_power_w <= 400
    assert before.max_power_w != usual.max_power_w
    measured = before.epochs[usual.default_batch_size][0]
    assert measured.average_power_w == measured.power_limit_w == before.max_power_w


def usual_epochs(problem: BatchSizeProblem) -> list[float]:
    """What trainings take on the average, by batch size."""
    return [sum(epochs or 0 for epochs in runs) / len(runs) for runs in problem.runs.values()]


@pytest.mark.parametrize("seed", range(5))
def test_a_harder_target_takes_more_epochs_at_the_same_price_and_an_easier_one_fewer(seed: int) -> None:
    usual = made_problem(Family.RISING, Start.MIDDLE, seed)
    harder, easier = (
        made_problem(Family.RISING, Start.MIDDLE, seed, changes=parse_changes(new_version=f"{target}@30"))
        for target in (0.95, 0.8)
    )
    assert replace(harder.at(29), earlier=()) == usual
    assert harder.epochs == easier.epochs == usual.epochs
    for hard, middle, easy in zip(*map(usual_epochs, (harder, usual, easier)), strict=True):
        assert 2**0.25 < hard / middle < 2**1.75
        assert 2**0.2 < middle / easy < 2**1.8, "rounded to whole epochs"
    assert harder.workload.max_epochs == math.ceil(4 * max(usual_epochs(harder))) > usual.workload.max_epochs
    assert easier.workload.max_epochs < usual.workload.max_epochs


def test_other_batch_sizes_need_other_factors_for_another_target() -> None:
    changes = parse_changes(new_version="0.97@30")
    spreads = []
    for seed in SEEDS:
        problem = made_problem(Family.FLAT, Start.MIDDLE, seed, changes=changes)
        pairs = zip(usual_epochs(problem), usual_epochs(problem.at(1)), strict=True)
        factors = [math.log(new / old) for new, old in pairs]
        spreads.append(factors[-1] - factors[0])
    assert min(spreads) < -0.1 < 0.1 < max(spreads)
    assert max(map(abs, spreads)) < 0.7


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"move_from": "v100@30"}, "generated problems move from GPU made-2, got v100"),
        ({"move_from": "made@30"}, "cannot move from made, its own GPU"),
        ({"new_version": "0.9@30"}, "has target metric 0.9 from the beginning"),
        ({"new_version": "1.0@30"}, "generated problems have target metrics from 0.5 to 0.99, got 1"),
        ({"new_version": "0.4@30"}, "generated problems have target metrics from 0.5 to 0.99, got 0.4"),
    ],
)
def test_a_change_for_which_nothing_is_known_is_refused(changes: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidSimulation, match=said):
        made_problem(Family.FLAT, Start.MIDDLE, 1, changes=parse_changes(**changes))
