"""What on_evaluate takes as a metric, and when that reaches the target."""

import math
import re
from typing import Any

import numpy as np
import pytest

from bso_client import InvalidReport, Outcome, Trial
from tests.unit.client.doubles import job_spec
from tests.unit.client.fixtures import MakeOptimizer


def trained(make_bso: MakeOptimizer, metric: Any, **spec: Any) -> Trial:
    """The only trial of a recurrence, which is evaluated once."""
    fields: dict[str, Any] = {"max_attempts": 1, "max_epochs": 1}
    trials = []
    for trial in make_bso(job_spec(**fields | spec)).trials():
        with trial:
            trial.on_evaluate(metric)
        trials.append(trial)
    (trial,) = trials
    return trial


def float32(number: float) -> float:
    """A number rounded to a float32, as a Python float: what ``.item()`` of such a tensor gives."""
    return float(np.float32(number))


@pytest.mark.parametrize("target", [0.9, 0.95, 0.97, 0.123456789, 1e-3, 99.9, 0.3333333333333333, 1e-42, 1e10 / 3])
@pytest.mark.parametrize("is_higher_better", [True, False])
def test_a_metric_in_32_bits_that_is_the_target_reaches_it(
    make_bso: MakeOptimizer, target: float, is_higher_better: bool
) -> None:
    for metric in (np.float32(target), float32(target), np.array([target], np.float32)):
        trial = trained(make_bso, metric, target_metric=target, higher_is_better_metric=is_higher_better)
        assert (trial.outcome, trial.metric) == (Outcome.CONVERGED, target)


@pytest.mark.parametrize(
    ("metric", "reported"),
    [
        (float32(0.9), 0.9),
        (float32(0.1234567), 0.1234567),
        (0.5, 0.5),
        (0.1, 0.1),
        (0.8999999, 0.8999999),
        (1 / 3, 1 / 3),
        (float32(3.4e38), 3.4e38),
        (16777216.0, 16777216.0),
        (1e300, 1e300),
        (float32(1e-45), 1.4013e-45),
        (5e-324, 5e-324),
        (-0.25, -0.25),
        (0.0, 0.0),
        (3, 3.0),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
    ],
)
def test_other_metrics_are_what_they_were_before_they_were_rounded(
    make_bso: MakeOptimizer, metric: float, reported: float
) -> None:
    found = trained(make_bso, metric, target_metric=0.7).metric
    assert found is not None
    assert found == reported


def test_a_whole_number_does_not_reach_a_target_that_only_rounds_to_it(make_bso: MakeOptimizer) -> None:
    assert trained(make_bso, 16777216.0, target_metric=16777217.0).outcome is Outcome.NOT_CONVERGED
    lower = trained(make_bso, 1.0, target_metric=0.99999999, higher_is_better_metric=False)
    assert lower.outcome is Outcome.NOT_CONVERGED


def test_a_metric_that_is_not_a_number_stays_one(make_bso: MakeOptimizer) -> None:
    found = trained(make_bso, np.float32("nan"), target_metric=0.7).metric
    assert found is not None
    assert math.isnan(found)


def test_a_float64_just_below_the_target_does_not_reach_it_and_the_reason_shows_the_difference(
    make_bso: MakeOptimizer,
) -> None:
    trial = trained(make_bso, 0.8999999999, target_metric=0.9)
    assert trial.outcome is Outcome.NOT_CONVERGED
    assert trial.outcome_reason == "the metric was 0.8999999999 after 1 of at most 1 epoch, the target is 0.9"


def test_a_training_that_is_left_below_its_target_says_by_how_much(make_bso: MakeOptimizer) -> None:
    trial = trained(make_bso, 0.8999999999, target_metric=0.9, max_epochs=5)
    assert trial.outcome_reason == (
        "the training ended before it reached the target 0.9: the metric was 0.8999999999 after 1 epoch"
    )


@pytest.mark.parametrize("metric", [np.array([0.75]), np.array(0.75), np.array([[0.75]]), np.float64(0.75)])
def test_an_array_of_one_element_is_a_number(make_bso: MakeOptimizer, metric: Any) -> None:
    assert trained(make_bso, metric, target_metric=0.7).metric == 0.75


@pytest.mark.parametrize(
    ("metric", "remedy"),
    [
        (None, "got NoneType: None: let the evaluation return its metric"),
        ({"acc": 0.9, "loss": 1.0}, "pass one of its values, such as metrics['acc']"),
        ({}, "pass one of its values, such as metrics['acc']"),
        ([0.9], "pass one of its numbers, or their mean; of a tensor or an array with one element, .item()"),
        (np.array([0.9, 0.8]), "pass one of its numbers, or their mean"),
        (np.array("0.9"), "got the text '0.9': convert it with float()"),
    ],
)
def test_what_is_no_number_says_what_to_pass(make_bso: MakeOptimizer, metric: Any, remedy: str) -> None:
    with pytest.raises(InvalidReport, match=re.escape(remedy)):
        trained(make_bso, metric)


def test_progress_that_does_not_grow_is_told_in_epochs(make_bso: MakeOptimizer) -> None:
    for trial in make_bso(job_spec(max_attempts=1)).trials():
        with trial:
            trial.on_evaluate(0.1)
            with pytest.raises(InvalidReport, match=r"it was 1 epoch, and is now 0\.5 epochs;"):
                trial.on_evaluate(0.2, epoch=0.5)


@pytest.mark.parametrize("share", [count / 1024 for count in (1, 333, 913, 1021)])
def test_a_target_with_many_digits_is_reached_by_the_same_number(make_bso: MakeOptimizer, share: float) -> None:
    assert trained(make_bso, share, target_metric=share).outcome is Outcome.CONVERGED
