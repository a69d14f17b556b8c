"""Noise multiplies what epochs cost, the same way for everybody, and leaves true costs and epochs as they are."""

import math
import statistics

import pytest

from bso.simulator import NO_NOISE, InvalidSimulation, parse_drift, parse_noise, simulate
from bso.simulator.world import World
from tests.unit.simulator.problems import make, profiling_shares

EASY = make({16: (9, 10, 11), 32: (5, 6), 64: (8, 9), 128: (20, 22)})
MANY = range(1, 2001)


def logs(noise: str, *, recurrence: int = 1) -> list[float]:
    parsed = parse_noise(noise)
    return [math.log(parsed.run_factor(7, 64, run, recurrence)) for run in MANY]


def test_the_parts_of_the_grammar_are_read_together() -> None:
    noise = parse_noise("run:0.3, epoch:0.2,spikes:0.1x3,node:0.4x10")
    assert (noise.run, noise.epoch, noise.node, noise.node_length) == (0.3, 0.2, 0.4, 10.0)
    assert (noise.spike_rate, noise.spike_factor) == (0.1, 3.0)
    assert parse_noise("") == parse_noise(" , ") == NO_NOISE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("runs:0.3", "not understood; examples are run:0.3"),
        ("run", "not understood"),
        ("run:1.2.3", "holds no number"),
        ("run:3", "between 0 and 2, got 3"),
        ("spikes:1.5x3", "between 0 and 1, got 1.5"),
        ("spikes:0.5x0", "between 1 and 1000, got 0"),
        ("node:0.3x0.5", "'node:0.3x0.5': a node must last for 1 recurrence or more, got 0.5"),
    ],
)
def test_what_is_no_noise_is_refused_with_examples(text: str, words: str) -> None:
    with pytest.raises(InvalidSimulation, match=words):
        parse_noise(text)


def test_runs_vary_by_their_deviation_around_what_they_should_cost() -> None:
    found = logs("run:0.3")
    assert abs(statistics.mean(found)) < 0.03
    assert statistics.stdev(found) == pytest.approx(0.3, rel=0.05)


def test_spikes_come_as_often_as_they_should() -> None:
    found = logs("spikes:0.1x3")
    assert {round(each, 9) for each in found} == {0.0, round(math.log(3), 9)}
    assert sum(each > 0 for each in found) / len(found) == pytest.approx(0.1, abs=0.02)


def test_a_node_is_the_same_for_all_runs_of_a_recurrence_and_lasts_for_some() -> None:
    noise = parse_noise("node:0.3x4")
    assert len({noise.run_factor(7, size, run, 5) for size in (16, 32) for run in (1, 2)}) == 1
    factors = [noise.run_factor(7, 16, 1, recurrence) for recurrence in MANY]
    assert len(MANY) / len(set(factors)) == pytest.approx(4.0, rel=0.1)
    assert statistics.stdev(map(math.log, set(factors))) == pytest.approx(0.3, rel=0.1)


def test_epochs_of_a_run_vary_apart_from_the_run() -> None:
    noise = parse_noise("epoch:0.3")
    found = [math.log(noise.epoch_factor(7, 64, 1, epoch)) for epoch in MANY]
    assert statistics.stdev(found) == pytest.approx(0.3, rel=0.05)
    assert found != [math.log(noise.epoch_factor(7, 64, 2, epoch)) for epoch in MANY]
    assert noise.run_factor(7, 64, 1, 1) == 1.0


def test_other_seeds_and_batch_sizes_have_other_luck() -> None:
    noise = parse_noise("run:0.3")
    assert len({noise.run_factor(seed, size, 1, 1) for seed in (1, 2) for size in (16, 32)}) == 4


@pytest.mark.parametrize("noise", ["run:0.3", "epoch:0.3", "spikes:0.3x3", "node:0.3"])
def test_a_training_pays_for_the_noise_that_its_run_meets(noise: str) -> None:
    parsed = parse_noise(noise)
    run = simulate(EASY, {"policy": "pruning_thompson", "early_stopping": False}, recurrences=20, seed=3, noise=parsed)
    world = World(problem=EASY, seed=3, eta_knob=0.5, noise=parsed)
    seen: dict[int, int] = {}
    for trial in sorted(run.trials, key=lambda one: one.trial_number):
        size = trial.batch_size
        seen[size] = seen.get(size, 0) + 1
        epochs = [world.epoch_factor(size, seen[size], epoch) for epoch in range(1, trial.epochs + 1)]
        is_first = trial.trial_number == 1
        prices = [world.price(size, 1)] * trial.epochs
        if trial.is_profiling:
            prices[0 if is_first else 1] = world.price_under(profiling_shares(EASY, size, is_first=is_first), size, 1)
        usual = sum(world.cost(price, 1) * factor for price, factor in zip(prices, epochs, strict=True))
        assert trial.cost == pytest.approx(usual * world.run_factor(size, seen[size], trial.recurrence))


def test_an_oracle_meets_the_same_noise_and_true_costs_have_none() -> None:
    quiet, noisy = (
        simulate(EASY, recurrences=30, seed=3),
        simulate(EASY, recurrences=30, seed=3, noise=parse_noise("run:1")),
    )
    assert noisy.oracle.batch_sizes == quiet.oracle.batch_sizes
    assert noisy.oracle.mean_costs == quiet.oracle.mean_costs
    assert noisy.mean_costs == quiet.mean_costs
    world = World(problem=EASY, seed=3, eta_knob=0.5, noise=parse_noise("run:1"))
    factors = [world.run_factor(32, run, run) for run in range(1, 31)]
    expected = [cost * factor for cost, factor in zip(quiet.oracle.costs, factors, strict=True)]
    assert noisy.oracle.costs == pytest.approx(expected)


def test_noise_goes_together_with_drift_overlap_and_failures() -> None:
    run = simulate(
        EASY,
        recurrences=30,
        seed=1,
        overlap=2,
        drift=parse_drift("epoch-cost:x2@10"),
        failure_rate=0.1,
        noise=parse_noise("run:0.3,epoch:0.3,spikes:0.1x3,node:0.3"),
    )
    assert len(run.batch_sizes) == 30
