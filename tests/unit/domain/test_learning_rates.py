"""Learning rates: how they follow the batch size, and what is said when they change."""

from dataclasses import replace

import pytest

from bso.domain import commands as do
from bso.domain.events import TrialStarted
from bso.domain.learning_rate import LearningRate, ScalingRule
from tests.unit.domain.builders import A100, JobLife, problem_of

GOYAL = LearningRate(0.1, reference_batch_size=256)
"""ResNet-50 on ImageNet (Goyal et al. 2017, section 2.1)."""


@pytest.mark.parametrize(
    ("rule", "batch_size", "rate"),
    [
        ("linear", 256, 0.1),
        ("linear", 8192, 3.2),
        ("linear", 64, 0.025),
        ("square_root", 256, 0.1),
        ("square_root", 1024, 0.2),
        ("square_root", 64, 0.05),
        ("none", 8192, 0.1),
    ],
)
def test_the_rate_follows_the_batch_size_by_its_rule(rule: ScalingRule, batch_size: int, rate: float) -> None:
    assert replace(GOYAL, rule=rule).at(batch_size) == pytest.approx(rate, rel=1e-12)


def test_the_linear_rule_is_the_default_and_the_reference_has_its_value_exactly() -> None:
    assert GOYAL.rule == "linear"
    for rule in ("linear", "square_root", "none"):
        assert LearningRate(0.3, reference_batch_size=96, rule=rule).at(96) == 0.3


@pytest.mark.parametrize(
    ("rate", "field"),
    [
        (replace(GOYAL, value=0.0), "learning_rate.value"),
        (replace(GOYAL, value=-0.1), "learning_rate.value"),
        (replace(GOYAL, value=float("nan")), "learning_rate.value"),
        (replace(GOYAL, value=float("inf")), "learning_rate.value"),
        (replace(GOYAL, reference_batch_size=0), "learning_rate.reference_batch_size"),
        (replace(GOYAL, reference_batch_size=2**31), "learning_rate.reference_batch_size"),
        (replace(GOYAL, rule="cubic"), "learning_rate.rule"),  # type: ignore[arg-type]  # what a client may send
    ],
)
def test_a_rate_out_of_range_is_refused_and_begins_no_trial(rate: LearningRate, field: str) -> None:
    life = JobLife()
    life.register()
    problem = problem_of(life.send(do.BeginTrial(hardware=A100, learning_rate=rate)))
    assert (problem.type, list(problem.fields)) == ("invalid_trial", [field])
    assert life.rows == {}


def test_the_rate_is_recorded_with_the_trial() -> None:
    life = JobLife()
    life.register()
    trial = life.begin("a", learning_rate=GOYAL)
    assert life.row(trial).learning_rate == GOYAL
    assert life.happened(TrialStarted)[0].learning_rate == GOYAL


def test_another_rate_in_the_same_version_is_warned_of_once() -> None:
    life = JobLife()
    life.register()
    assert life.begin("a", learning_rate=GOYAL).warnings == ()
    assert life.begin("b", learning_rate=GOYAL).warnings == ()
    [warning] = life.begin("c", learning_rate=replace(GOYAL, value=0.2)).warnings
    assert warning == (
        "the learning rate is 0.2 at batch size 256, linear scaling; the last trial of version 1 of job job had 0.1 at "
        "batch size 256, linear scaling, and costs under different rates are not comparable: give the job another "
        "`version`, or go back to the old rate"
    )
    assert life.begin("d", learning_rate=replace(GOYAL, value=0.2)).warnings == ()
    assert len(life.begin("e", learning_rate=GOYAL).warnings) == 1


def test_another_version_may_have_another_rate_and_each_remembers_its_own() -> None:
    life = JobLife()
    life.register(version="goyal")
    life.begin("a", learning_rate=GOYAL)
    life.register(version="krizhevsky")
    other = replace(GOYAL, rule="square_root")
    assert life.begin("b", learning_rate=other).warnings == ()
    life.register(version="goyal")
    assert life.begin("c", learning_rate=GOYAL).warnings == ()
    assert len(life.begin("d", learning_rate=other).warnings) == 1


def test_a_training_that_does_not_report_its_rate_is_left_alone() -> None:
    life = JobLife()
    life.register()
    assert life.begin("a").warnings == ()
    assert life.begin("b", learning_rate=GOYAL).warnings == ()
    assert life.begin("c").warnings == ()
    assert len(life.begin("d", learning_rate=replace(GOYAL, rule="none")).warnings) == 1
