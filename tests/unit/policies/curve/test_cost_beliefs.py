"""What is believed of epoch costs, from what was seen of them."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import pytest

from bso.policies.curve.cost_records import EpochCostKnowledge, EpochCostRecord
from bso.policies.curve.epoch_records import RunSums
from bso.policies.curve.hypotheses import CostBeliefs

SIZES = (16, 32, 64, 128, 256)
PLACES = (-2.0, -1.0, 0.0, 1.0, 2.0)
INDEX = {size: i for i, size in enumerate(SIZES)}
FALLING = {size: math.log(100.0) - 0.35 * place for size, place in zip(SIZES, PLACES, strict=True)}


def seen(
    runs: Mapping[int, Sequence[float]], *, before: Mapping[int, Sequence[float]] | None = None, total: int = 0
) -> EpochCostKnowledge:
    """Runs of each batch size, in ln J; those of ``before`` came before costs changed."""
    squares = sum((value - fmean(values)) ** 2 for values in runs.values() for value in values)
    earlier = before or {}
    return EpochCostKnowledge(
        records={
            size: EpochCostRecord(sums=_sums(runs.get(size, ())), before=_sums(earlier.get(size, ())))
            for size in {*runs, *earlier}
        },
        squares=squares,
        freedom=sum(len(values) - 1.0 for values in runs.values()),
        runs=total or sum(map(len, runs.values())),
    )


def _sums(values: Sequence[float]) -> RunSums:
    return RunSums(weight=len(values), mean=fmean(values)) if values else RunSums()


def believed(knowledge: EpochCostKnowledge) -> CostBeliefs:
    return CostBeliefs(PLACES, INDEX, knowledge)


@pytest.mark.parametrize("deviation", [0.02, 0.1, 0.3, 0.6])
def test_noise_is_learnt_from_runs_of_a_batch_size(deviation: float) -> None:
    values = [5.0 + deviation * z for z in (-1.5, -1.0, -0.5, -0.3, 0.0, 0.1, 0.4, 0.7, 1.0, 1.1)]
    assert 0.5 * deviation < math.sqrt(believed(seen({64: values})).noise) < 1.7 * deviation


def test_noise_is_learnt_from_costs_that_make_no_smooth_curve() -> None:
    jagged = {size: [value + 0.5 * (-1) ** i] for i, (size, value) in enumerate(FALLING.items())}
    smooth = {size: [value] for size, value in FALLING.items()}
    assert believed(seen(jagged)).noise > 4.0 * believed(seen(smooth)).noise


def test_with_noise_one_run_says_less_of_a_batch_size() -> None:
    def uncertain(deviation: float) -> float:
        values = [FALLING[64] + deviation * z for z in (-1.4, -0.7, -0.2, 0.2, 0.7, 1.4)]
        return believed(seen({64: values, 128: [FALLING[128]]})).ratio_variance(INDEX[128], INDEX[64])

    assert uncertain(0.5) > 4.0 * uncertain(0.05)


def test_runs_are_expected_to_reduce_what_is_uncertain_the_more_of_them_the_more() -> None:
    beliefs = believed(seen({64: [4.0, 4.5, 5.0, 5.5], 128: [4.4]}))
    one, eight = beliefs.learnt(INDEX[128], INDEX[64], (1, 8))
    assert 0.0 < one < eight < beliefs.ratio_variance(INDEX[128], INDEX[64])


def test_a_lone_run_far_above_its_neighbours_may_be_a_spike() -> None:
    usual = {size: [value, value + 0.02] for size, value in FALLING.items() if size != 64}
    spiked = believed(seen({**usual, 64: [FALLING[64] + math.log(3.0)]}))
    twice = believed(seen({**usual, 64: [FALLING[64] + math.log(3.0)] * 2}))
    assert spiked.spike_probabilities[INDEX[64]] > 0.7
    assert spiked.means[INDEX[64]] == pytest.approx(FALLING[64], abs=0.2)
    assert spiked.variances[INDEX[64]] > 10.0 * spiked.variances[INDEX[32]]
    assert twice.spike_probabilities[INDEX[64]] == 0.0
    assert twice.means[INDEX[64]] > FALLING[64] + 0.9


def test_a_lone_run_far_below_its_neighbours_is_no_spike() -> None:
    usual = {size: [value, value + 0.02] for size, value in FALLING.items() if size != 64}
    assert believed(seen({**usual, 64: [FALLING[64] - math.log(3.0)]})).spike_probabilities[INDEX[64]] == 0.0


def test_after_a_change_the_order_of_batch_sizes_is_still_known_and_one_run_gives_the_level() -> None:
    before = {size: [value] * 5 for size, value in FALLING.items()}
    beliefs = believed(seen({64: [FALLING[64] + 0.4]}, before=before, total=26))
    for size, value in FALLING.items():
        assert beliefs.means[INDEX[size]] == pytest.approx(value + 0.4, abs=0.05)
        assert beliefs.ratio_variance(INDEX[size], INDEX[64]) < 0.1**2


def test_before_anything_was_seen_nothing_is_known() -> None:
    beliefs = believed(EpochCostKnowledge())
    assert beliefs.variances[INDEX[64]] > 100.0
    assert 0.0 < beliefs.noise < 0.3
