"""Validation curves: what they show of the epochs that a running trial will need."""

import copy
import dataclasses
import json
import math
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso.domain.replies import EpochJudged, TrialBegun
from bso.domain.trial import Outcome
from bso.policies.curve.beliefs import Beliefs
from bso.policies.curve.epoch_observations import censored
from bso.policies.curve.epoch_records import EpochRecord
from bso.policies.curve.memory import epoch_costs_on, epochs_of
from bso.policies.curve.stops import Underway, why_to_stop
from bso.policies.curve.validation import (
    MOST_PASSED,
    Approach,
    Forecast,
    Landmark,
    Passed,
    Ratio,
    forecast,
    known_approach,
    ratios,
    with_ratios,
)
from bso.schema.codec import job_from_state, state_of
from tests.unit.domain.builders import searching
from tests.unit.policies.curve.invented_trainings import PRICES, Trainings

NOISE = 0.2**2


def approach_of(distances: list[float], *, interval: float = 1.0) -> Approach:
    """That of a run which was so far from its target at each of its reports."""
    approach = Approach()
    for number, (before, now) in enumerate(pairwise(distances), start=1):
        approach = approach.after(before, now, before=number * interval, now=(number + 1) * interval)
    return approach


def passed_of(distances: list[float], *, interval: float = 1.0) -> dict[int, float]:
    """The landmarks that it has passed since its first report, and when."""
    return {one.power: one.epochs for one in approach_of(distances, interval=interval).passed if one.epochs}


def test_a_run_passes_a_landmark_at_each_halving_of_its_distance() -> None:
    assert passed_of([0.75, 0.5, 0.25, 0.125]) == {-1: 2.0, -2: 3.0, -3: 4.0}


def test_between_two_reports_the_metric_moves_evenly() -> None:
    assert passed_of([0.75, 0.25]) == {-1: 1.5, -2: 2.0}
    assert passed_of([0.75, 0.25], interval=0.25) == {-1: 0.375, -2: 0.5}


def test_a_landmark_counts_once_however_the_metric_wavers() -> None:
    assert passed_of([0.75, 0.25, 0.75, 0.25, 0.9, 0.2]) == passed_of([0.75, 0.25])


def test_what_was_passed_before_the_first_report_is_not_dated() -> None:
    assert passed_of([0.3, 0.9, 0.3, 0.25]) == {-2: 4.0}


@pytest.mark.parametrize("nothing", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_no_number_is_passed_over(nothing: float) -> None:
    assert passed_of([0.75, 0.6, nothing, 0.4]) == {}
    assert passed_of([0.75, 0.6, nothing, 0.4, 0.25]) == {-1: 4.0, -2: 5.0}


def test_a_metric_that_does_not_move_says_nothing() -> None:
    assert approach_of([1.0] * 50) == Approach()


@searching(200)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30), st.sampled_from([0.1, 1.0, 3.5]))
def test_landmarks_are_passed_one_after_another_and_are_few(distances: list[float], interval: float) -> None:
    passed = approach_of(distances, interval=interval).passed
    assert len(passed) <= MOST_PASSED
    for one, other in pairwise(passed):
        assert one.power == other.power + 1
        assert 0.0 <= one.epochs <= other.epochs <= (len(distances) + 1e-9) * interval


def known_landmarks(runs: int, *, spread: float) -> dict[int, Landmark]:
    """Runs that needed about three times the epochs at which they had come as near as 1/8."""
    landmarks: dict[int, Landmark] = {}
    for number in range(runs):
        shift = spread * (1.0 if number % 2 else -1.0)
        landmarks = dict(with_ratios(landmarks, [Ratio(power=-3, ln_ratio=math.log(3.0) + shift)], 1.0))
    return landmarks


AT_TEN = Approach(passed=(Passed(power=-1, epochs=0.0), Passed(power=-2, epochs=4.0), Passed(power=-3, epochs=10.0)))


def test_the_forecast_stretches_what_earlier_runs_needed() -> None:
    predicted = forecast(known_landmarks(8, spread=0.05), AT_TEN, NOISE)
    assert predicted is not None
    assert math.exp(predicted.ln_epochs) == pytest.approx(30.0)
    assert predicted.at == 10.0
    assert predicted.words == "at epoch 10 it was so close to the target that, by earlier runs, it needs 30 in all"


def test_a_landmark_that_one_run_has_passed_says_nothing() -> None:
    assert forecast(known_landmarks(1, spread=0.0), AT_TEN, NOISE) is None
    assert forecast(known_landmarks(8, spread=0.05), Approach(), NOISE) is None


def test_a_curve_that_predicts_no_better_than_the_batch_size_says_nothing() -> None:
    assert forecast(known_landmarks(20, spread=0.25), AT_TEN, NOISE) is None


def test_the_more_runs_agree_the_more_a_forecast_counts() -> None:
    few, many = (forecast(known_landmarks(runs, spread=0.05), AT_TEN, NOISE) for runs in (4, 20))
    assert few is not None
    assert many is not None
    assert few.precision < many.precision
    expected, deviation = many.combined(math.log(20.0), 0.3)
    assert math.log(20.0) < expected < many.ln_epochs
    assert deviation < 0.3


def test_what_is_remembered_is_bounded_and_keeps_what_most_runs_passed() -> None:
    landmarks = known_landmarks(5, spread=0.1)
    for power in range(-200, 200):
        landmarks = dict(with_ratios(landmarks, [Ratio(power=power, ln_ratio=1.0)], 1.0))
    assert len(landmarks) == 2 * MOST_PASSED
    assert landmarks[-3].weight == 6.0


def test_a_change_fades_the_landmarks() -> None:
    after = with_ratios(known_landmarks(10, spread=0.1), (), 0.1)
    assert after[-3].weight == pytest.approx(1.0)
    assert after[-3].mean == pytest.approx(math.log(3.0))


def test_a_run_shows_for_each_landmark_how_much_longer_it_took() -> None:
    assert ratios(AT_TEN, 40.0) == (
        Ratio(power=-2, ln_ratio=math.log(10.0)),
        Ratio(power=-3, ln_ratio=math.log(4.0)),
    )


@dataclasses.dataclass(kw_only=True)
class CurvedTrainings(Trainings):
    """Trainings whose metric approaches the target evenly, in as many epochs as they need."""

    def train(self, trial: TrialBegun, *, up_to: float = math.inf) -> EpochJudged:
        """Train a trial until it is stopped, or has come so far."""
        usual = self.epochs[trial.batch_size]
        assert usual is not None
        return self.train_for(trial, max(1, round(usual * self.paths.lognormvariate(0.0, self.noise))), up_to=up_to)

    def train_for(self, trial: TrialBegun, needed: int, *, up_to: float = math.inf) -> EpochJudged:
        """The same for one that needs so many epochs."""
        is_higher_better = trial.spec.higher_is_better_metric
        while True:
            row = self.life.row(trial)
            distance = 0.4 * (1.0 - (row.epoch + 1.0) / needed)
            metric = trial.spec.target_metric + (-distance if is_higher_better else distance)
            decision = self.life.report(trial, cost=row.cost + self.prices[trial.batch_size], metric=metric)
            if decision.should_stop or row.epoch + 1.0 >= up_to:
                return decision


@pytest.fixture(scope="module", params=[True, False])
def learnt_by_all(request: pytest.FixtureRequest) -> CurvedTrainings:
    """What `experienced` begins with, made once."""
    trainings = CurvedTrainings(noise=0.35).register(
        default_batch_size=64, target_metric=0.5, higher_is_better_metric=request.param
    )
    trainings.chosen(range(40))
    assert isinstance(trainings, CurvedTrainings)
    return trainings


@pytest.fixture
def experienced(learnt_by_all: CurvedTrainings) -> CurvedTrainings:
    """A job that knows its batch sizes, its landmarks, and that its runs vary; what one test adds, no other sees."""
    return copy.deepcopy(learnt_by_all)


def begin_incumbent(trainings: CurvedTrainings, name: str) -> TrialBegun:
    """A trial of the best known batch size; others are trained to their ends."""
    for number in range(20):
        trial = trainings.life.begin(f"{name}-{number}")
        if "is the best one known" in trial.reason and trial.bound is not None:
            return trial
        trainings.end(trial)
    raise AssertionError("never ran the incumbent")


def test_a_run_that_is_nearly_there_goes_on_above_the_bound(experienced: CurvedTrainings) -> None:
    trial = begin_incumbent(experienced, "nearly")
    assert trial.bound is not None
    needed = math.ceil(1.25 * trial.bound / PRICES[trial.batch_size])
    decision = experienced.train_for(trial, needed, up_to=needed - 1)
    assert not decision.should_stop
    assert decision.cost > trial.bound
    assert f"by earlier runs, it needs {needed} in all; going on is cheaper than a fresh run" in decision.reason
    assert experienced.train_for(trial, needed).outcome is Outcome.CONVERGED


def test_a_run_that_is_far_from_its_target_is_stopped_at_the_bound(experienced: CurvedTrainings) -> None:
    trial = begin_incumbent(experienced, "far")
    assert trial.bound is not None
    decision = experienced.train_for(trial, math.ceil(6.0 * trial.bound / PRICES[trial.batch_size]))
    assert decision.outcome is Outcome.COST_EXCEEDED
    assert decision.cost < trial.bound + 2 * PRICES[trial.batch_size]


def test_folding_the_log_gives_what_the_curves_taught(experienced: CurvedTrainings) -> None:
    job = experienced.life.job
    assert job is not None
    assert epochs_of(job.version).landmarks
    assert experienced.life.folded().versions == job.versions


def test_what_is_known_of_a_running_trial_is_stored_and_goes_with_it(experienced: CurvedTrainings) -> None:
    trial = experienced.life.begin("stored")
    experienced.train_for(trial, 12, up_to=9)
    job = experienced.life.job
    assert job is not None
    approach = known_approach(trial.trial_number, epochs_of(job.version).approaches)
    assert [one.power for one in approach.passed] == [-1, -2, -3]
    read = job_from_state(job.job_id, job.last_seq, json.loads(state_of(job)))
    assert read.version == job.version
    experienced.train_for(trial, 12)
    assert experienced.life.job is not None
    assert not epochs_of(experienced.life.job.version).approaches


def beliefs_of(trainings: Trainings) -> Beliefs:
    """What a job believes."""
    assert trainings.life.job is not None
    version = trainings.life.job.version
    return Beliefs(version.spec, epochs_of(version), epoch_costs_on(trainings.life.known()))


LONG = Forecast(ln_epochs=math.log(90.0), precision=1.0 / 0.1**2, at=4.0)


def test_an_exploration_is_stopped_when_its_curve_says_that_it_is_slow(experienced: CurvedTrainings) -> None:
    usual = Underway(
        epochs=5.0,
        interval=1.0,
        cost=5.0 * PRICES[64],
        epoch_cost=math.log(PRICES[64]),
        usual_cost=math.log(PRICES[64]),
        max_epochs=100,
        is_second_look=False,
    )
    compared = beliefs_of(experienced).compared(64, 128)
    assert why_to_stop(compared, usual, recurrences=10, rise=0.0) is None
    slow = dataclasses.replace(usual, forecast=LONG)
    reason = why_to_stop(compared, slow, recurrences=10, rise=0.0)
    assert str(reason).endswith("; at epoch 4 it was so close to the target that, by earlier runs, it needs 90 in all")


@pytest.mark.parametrize("epochs", [5.0, 60.0, 95.0])
def test_a_stopped_run_counts_as_about_what_its_curve_foretold(experienced: CurvedTrainings, epochs: float) -> None:
    beliefs = beliefs_of(experienced)
    predictions = [
        censored(beliefs, EpochRecord(), 256, epochs, 1.0, may_have_failed=False, has_incumbent=True, forecast=one)
        for one in (None, LONG)
    ]
    [blind, seeing] = [one for one in predictions if one.ln_epochs is not None and one.variance is not None]
    assert seeing.ln_epochs == pytest.approx(max(math.log(90.0), math.log(epochs)), abs=0.15)
    assert blind.variance is not None
    assert seeing.variance is not None
    noise = beliefs.of(256).noise
    assert noise <= seeing.variance <= (noise + 1.0 / LONG.precision) * (1.0 + 1e-9), "about one run, at every length"
    if epochs < 10.0:
        assert seeing.variance < 0.01 * blind.variance, "that it has outlasted what is short says next to nothing"


def test_a_curve_that_a_stopped_run_has_refuted_says_nothing(experienced: CurvedTrainings) -> None:
    beliefs = beliefs_of(experienced)
    judge = partial(censored, beliefs, EpochRecord(), 256, 300.0, 1.0, may_have_failed=False, has_incumbent=True)
    assert judge(forecast=LONG) == judge()


def test_a_metric_that_never_moves_leaves_no_trace() -> None:
    trainings = Trainings(noise=0.2).register()
    trainings.chosen(range(20))
    assert trainings.life.job is not None
    epochs = epochs_of(trainings.life.job.version)
    assert not epochs.landmarks
    assert not epochs.approaches
