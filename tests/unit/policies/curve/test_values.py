"""What runs of another batch size are worth, against simulation."""

import dataclasses
import math

import numpy as np
import pytest

from bso.domain.job_spec import JobSpec
from bso.policies.curve.beliefs import Beliefs
from bso.policies.curve.choices import TOGETHER
from bso.policies.curve.epoch_records import EpochKnowledge
from bso.policies.curve.values import Value, value_of
from tests.unit.policies.curve.made_up_knowledge import SPEC, costing, lasting

UNSTOPPED = dataclasses.replace(SPEC, early_stopping=False)


def near_tie(
    *, runs_of_other: int = 4, other: float = 20.8, spec: JobSpec = UNSTOPPED, cost_noise: float = 0.02
) -> Beliefs:
    """64 is well known; 128 was seen less often and looks hardly more expensive."""
    known = lasting({64: 20.0}, runs=60, noise=0.2), lasting({128: other}, runs=runs_of_other, noise=0.2)
    records = {size: record for one in known for size, record in one.records.items()}
    costs = dataclasses.replace(costing(), squares=100 * cost_noise**2)
    return Beliefs(spec, EpochKnowledge(records=records), costs)


@pytest.mark.parametrize("runs", [1, 4])
def test_the_gain_is_what_the_recurrences_to_come_save_on_average(runs: int) -> None:
    beliefs = near_tie()
    value = value_of(beliefs, 128, 64, recurrences=100, together=(runs,))
    variance, shared, noise = beliefs.of(128).variance, beliefs.covariance(128, 64), beliefs.of(128).noise
    surprise = np.random.default_rng(1).normal(0.0, math.sqrt(variance + noise / runs), 400_000)
    moved = (variance - shared) / (variance + noise / runs) * surprise
    saved = 1.0 - np.exp(beliefs.of(128).cost - beliefs.of(64).cost + moved)
    saved[saved < SPEC.min_saving] = 0.0
    assert value.gain == pytest.approx((100 - runs) * saved.mean(), rel=0.03)
    assert value.runs == runs


def test_a_run_that_shows_to_be_too_expensive_costs_its_first_epoch_and_the_others_are_paid_for_in_full() -> None:
    beliefs = near_tie(other=26.0, spec=SPEC, cost_noise=0.3)
    value = value_of(beliefs, 128, 64, recurrences=100)
    whole = value_of(near_tie(other=26.0, cost_noise=0.3), 128, 64, recurrences=100)
    deviation = math.sqrt(beliefs.cost_ratio_variance(128, 64) + beliefs.cost_noise)
    shown = beliefs.of(128).cost - beliefs.of(64).cost - 0.5 * beliefs.cost_noise
    ratio = shown + deviation * np.random.default_rng(1).normal(size=400_000)
    epochs = 0.5 * beliefs.epochs_ratio_variance(128, 64)
    goes_on = ratio + epochs <= math.log1p(whole.gain)
    paid = np.where(goes_on, np.exp(ratio + epochs) - 1.0, np.exp(ratio - beliefs.of(128).epochs))
    assert 0.1 < goes_on.mean() < 0.9
    assert value.price == pytest.approx(max(paid.mean(), 0.0), rel=0.02, abs=1e-3)
    assert value.price < whole.price
    assert value.gain < whole.gain


def test_a_few_runs_may_be_worth_it_where_one_is_not() -> None:
    beliefs = near_tie(runs_of_other=8, other=20.4)
    one = value_of(beliefs, 128, 64, recurrences=100)
    several = value_of(beliefs, 128, 64, recurrences=100, together=TOGETHER)
    assert one.net < 0.0 < several.net
    assert several.runs in TOGETHER[1:]
    assert several.price == pytest.approx(several.runs * one.price)


def test_what_is_not_worth_it_is_given_for_one_run() -> None:
    dear = value_of(near_tie(other=40.0), 128, 64, recurrences=100, together=TOGETHER)
    assert dear.net < 0.0
    assert dear.runs == 1


@pytest.mark.parametrize("unit", [10.0, 1.0, 0.1, 0.001])
def test_the_value_does_not_depend_on_the_unit_of_progress(unit: float) -> None:
    """The same runs, whose progress is counted in other units, with as many reports."""

    def value(of_unit: float) -> Value:
        known = lasting({64: 20.0 * of_unit}, runs=60, noise=0.2), lasting({128: 26.0 * of_unit}, runs=4, noise=0.2)
        records = {size: record for one in known for size, record in one.records.items()}
        costs = dataclasses.replace(costing(), squares=100 * 0.3**2, interval=of_unit)
        return value_of(Beliefs(SPEC, EpochKnowledge(records=records), costs), 128, 64, recurrences=100)

    assert value(unit).price == pytest.approx(value(1.0).price, rel=0.1)
    assert value(unit).gain == pytest.approx(value(1.0).gain, rel=0.1)


def test_the_first_report_costs_a_run_at_most() -> None:
    beliefs = near_tie(other=26.0, spec=SPEC, cost_noise=0.3)
    beliefs.interval = 1e6
    assert value_of(beliefs, 128, 64, recurrences=100).price < 3.0
