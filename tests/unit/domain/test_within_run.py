"""By how much what an epoch costs varies within a run."""

import math
import random
from dataclasses import replace

import pytest

from bso.domain.progress import reports_of, squares_after
from bso.domain.trial import Profiled, Trial
from tests.unit.domain.builders import A100, THE_EPOCH, JobLife

TRIAL = Trial(
    trial_number=1,
    trial_id="t",
    version_number=1,
    recurrence_id="r",
    attempt=1,
    batch_size=64,
    hardware=A100,
    reason="",
    is_unbounded=False,
    started_at=THE_EPOCH,
)


def after(trial: Trial, costs: list[float], *, interval: float = 1.0) -> Trial:
    """The trial after reports, each of so many epochs, which cost so much more."""
    for more in costs:
        epoch, cost = trial.epoch + interval, trial.cost + more
        squares = squares_after(trial, epoch=epoch, cost=cost, is_profiling=False)
        trial = replace(trial, epoch=epoch, cost=cost, reports=trial.reports + 1, cost_squares=squares)
    return trial


@pytest.mark.parametrize("interval", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_it_is_the_variance_between_reports(interval: float, noise: float) -> None:
    draw = random.Random(1)
    trial = after(TRIAL, [10.0 * math.exp(draw.gauss(0.0, noise)) for _ in range(4000)], interval=interval)
    assert reports_of(trial) == pytest.approx(4000)
    assert math.sqrt(trial.cost_squares / (reports_of(trial) - 1.0)) == pytest.approx(noise, rel=0.15)


def test_equal_epochs_vary_by_nothing() -> None:
    assert after(TRIAL, [7.0] * 50).cost_squares == pytest.approx(0.0, abs=1e-20)


def test_one_report_says_nothing_and_a_free_one_does_no_harm() -> None:
    assert after(TRIAL, [7.0]).cost_squares == 0.0
    assert after(TRIAL, [0.0, 0.0, 7.0]).cost_squares == 0.0


def test_one_report_that_costs_a_thousand_times_as_much_counts_like_three_times() -> None:
    assert after(TRIAL, [1.0, 1000.0]).cost_squares == after(TRIAL, [1.0, 3.0]).cost_squares


def test_reports_in_which_power_limits_were_profiled_do_not_count() -> None:
    """The cost leaves out what profiling adds: profiled epochs count like the mean of the others."""
    profiled = replace(TRIAL, profiled=Profiled(epochs=1.0, time_s=9.0, energy_j=9.0), epoch=1.0, reports=1, cost=9.0)
    assert squares_after(profiled, epoch=2.0, cost=8.0, is_profiling=False) == 0.0
    assert squares_after(TRIAL, epoch=1.0, cost=5.0, is_profiling=True) == 0.0
    second = replace(profiled, epoch=2.0, reports=2, cost=8.0)
    assert reports_of(second) == pytest.approx(1.0)
    assert squares_after(second, epoch=3.0, cost=18.0, is_profiling=False) == pytest.approx(
        (8.0 / 4.0 - 1.0) ** 2 / 2.0
    )


def test_it_is_summed_up_from_what_a_training_reports() -> None:
    life = JobLife()
    life.register(policy="curve")
    trial = life.begin()
    for cost in (10.0, 20.0, 35.0):
        life.report(trial, cost=cost)
    assert life.row(trial).cost_squares == pytest.approx((15.0 / 10.0 - 1.0) ** 2 * 2.0 / 3.0)
