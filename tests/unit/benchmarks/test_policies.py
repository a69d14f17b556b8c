"""What policies are judged by: made problems, a hill climber, intervals."""

from dataclasses import replace

import pytest

from bso.simulator import Run, simulate
from bso.simulator.world import World
from tests.benchmarks.hill_climber import HillClimber
from tests.benchmarks.judging import poor_share
from tests.benchmarks.resampling import Resampled, table_over
from tests.benchmarks.smooth_curves import SIZES, smooth_problem


def world_of(number: int, noise: float | None = None) -> World:
    return World(problem=smooth_problem(number, noise=noise), seed=number, eta_knob=0.5)


@pytest.mark.parametrize("number", range(10))
def test_a_hill_climber_ends_at_the_best_batch_size_of_a_curve_without_noise(number: int) -> None:
    world = world_of(number, noise=0.0)
    climber = HillClimber(world)
    regrets = climber.regrets(40)
    sizes = world.problem.batch_sizes
    ended, best = (world.expected(size, 1).cost for size in (climber.batch_size, world.best_batch_size(1)))
    assert ended <= 1.05 * best, "rounded epochs may make a flat optimum uneven"
    assert climber.batch_size != sizes[0] or world.best_batch_size(1) == sizes[0]
    assert regrets[-1] - regrets[-10] == pytest.approx(9 * (ended / best - 1.0))


def test_defaults_of_made_problems_are_one_to_four_octaves_off_and_converge() -> None:
    octaves = set[int]()
    for number in range(40):
        world = world_of(number)
        default = world.problem.default_batch_size
        octaves.add(abs(SIZES.index(default) - SIZES.index(world.best_batch_size(1))))
        assert world.expected(default, 1).cost < 10 * world.expected(world.best_batch_size(1), 1).cost
    assert octaves >= {1, 2, 3, 4}
    assert max(octaves) <= 5, "a flat optimum may move by an octave when its runs are drawn"


def test_an_interval_holds_what_was_found_and_shrinks_with_more_seeds() -> None:
    few, many = (table_over([[float(seed % 10) for seed in range(count)]] * 2) for count in (10, 1000))
    few_low, few_mean, few_high = Resampled(["one", "one"], 10).mean(few)
    low, mean, high = Resampled(["one", "one"], 1000).mean(many)
    assert few_mean == pytest.approx(mean)
    assert few_low < low < mean < high < few_high


def test_a_percentile_is_one_of_the_values_by_its_rank() -> None:
    values = table_over([[float(value) for value in range(100, 0, -1)]])
    low, found, high = Resampled(["one"], 100).percentile(values, 0.99)
    assert found == 99.0
    assert low < found <= high == 100.0


def test_a_ratio_pairs_what_both_met_and_needs_something_to_divide_by() -> None:
    resampled, values = Resampled(["one", "two"], 2), table_over([[1.0, 2.0], [3.0, 4.0]])
    assert resampled.ratio(2 * values, values) == pytest.approx((2.0, 2.0, 2.0))
    assert resampled.ratio(values, 0 * values) is None


def test_a_choice_is_poor_by_its_first_trial_and_only_the_last_fifth_counts() -> None:
    problem = smooth_problem(0)
    run = simulate(problem, recurrences=10, seed=1)
    best = World(problem=problem, seed=1, eta_knob=0.5).best_batch_size(1)

    def chosen(*, until: int) -> Run:
        """The same run, had its first recurrences begun with the default and the others with the best."""
        first = {trial.recurrence: trial for trial in reversed(run.trials)}
        sizes = {number: problem.default_batch_size if number <= until else best for number in first}
        return replace(run, trials=tuple(replace(first[number], batch_size=size) for number, size in sizes.items()))

    assert [poor_share(chosen(until=until)) for until in (0, 8, 9, 10)] == [0.0, 0.0, 0.5, 1.0]
