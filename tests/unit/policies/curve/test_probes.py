"""What is believed of epoch costs that were probed, and what is made of it."""

import math
from collections.abc import Mapping

import pytest

from bso.domain.frozen_values import replace
from bso.policies.curve.beliefs import Beliefs
from bso.policies.curve.cost_records import EpochCostKnowledge, EpochCostRecord, Probe
from bso.policies.curve.epoch_records import RunSums
from tests.unit.policies.curve.made_up_knowledge import SIZES, SPEC, costing, lasting

TRUTH = {16: 3.0, 32: 1.8, 64: 1.0, 128: 0.8, 256: 0.7, 512: 0.9}
"""J of an epoch."""


def probed(costs: Mapping[int, float], *, runs: Mapping[int, float], weight: float = 1.0) -> EpochCostKnowledge:
    """Probes of some batch sizes, and runs of some, an epoch of which cost so much."""
    known = costing(())
    return replace(
        known,
        records={
            size: EpochCostRecord(sums=RunSums(weight=weight, mean=math.log(cost))) for size, cost in runs.items()
        },
        probes={size: Probe(value=math.log(cost), variance=0.02**2) for size, cost in costs.items()},
        runs=len(runs),
    )


def cost_of(beliefs: Beliefs, batch_size: int) -> float:
    return math.exp(beliefs.of(batch_size).epoch_cost)


def test_probes_say_how_costs_compare_and_a_run_says_how_high_they_are() -> None:
    twice = {size: 2.0 * cost for size, cost in TRUTH.items()}
    beliefs = Beliefs(SPEC, lasting({64: 20.0}), probed(twice, runs={64: 2.0}))
    for size in SIZES:
        assert cost_of(beliefs, size) == pytest.approx(2.0 * TRUTH[size], rel=0.15)


def test_without_probes_other_sizes_are_far_less_certain() -> None:
    without = Beliefs(SPEC, lasting({64: 20.0}), probed({}, runs={64: 1.0}))
    found = Beliefs(SPEC, lasting({64: 20.0}), probed(TRUTH, runs={64: 1.0}))
    assert found.cost_ratio_variance(512, 64) < 0.1 * without.cost_ratio_variance(512, 64)
    assert (found.is_probed(512), without.is_probed(512)) == (True, False)


def test_a_run_that_contradicts_its_probe_widens_all_of_them() -> None:
    right = Beliefs(SPEC, lasting({64: 20.0, 128: 20.0}), probed(TRUTH, runs={64: 1.0, 128: 0.8}))
    wrong = Beliefs(SPEC, lasting({64: 20.0, 128: 20.0}), probed(TRUTH, runs={64: 1.0, 128: 1.6}))
    assert wrong.cost_ratio_variance(512, 64) > 3.0 * right.cost_ratio_variance(512, 64)


def test_runs_outweigh_a_probe() -> None:
    beliefs = Beliefs(
        SPEC, lasting(dict.fromkeys((64, 128), 20.0)), probed(TRUTH, runs={64: 1.0, 128: 1.6}, weight=9.0)
    )
    assert cost_of(beliefs, 128) == pytest.approx(1.6, rel=0.05)


def test_a_factor_that_all_probes_share_does_not_move_them_against_each_other() -> None:
    """A node shared in the night of the probing: its run cost three times as much, and so did all probes."""
    once = Beliefs(SPEC, lasting({64: 20.0}), probed(TRUTH, runs={64: 1.0}))
    shared = {size: 3.0 * cost for size, cost in TRUTH.items()}
    spiked = Beliefs(SPEC, lasting({64: 20.0}), probed(shared, runs={64: 1.0}))
    for size in (32, 512):
        ratio = cost_of(spiked, size) / cost_of(spiked, 64)
        assert ratio == pytest.approx(cost_of(once, size) / cost_of(once, 64), rel=0.15)
