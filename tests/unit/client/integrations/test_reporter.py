"""What a trainer's callback does with a trial: nothing that it raises leaves the trainer."""

import pickle
from collections.abc import Iterator

import pytest

from bso.domain.trial import Outcome
from bso_client import BatchSizeOptimizer, InvalidSetting, Trial
from bso_client.integrations.reporter import Reporter, warn_of_doubts
from tests.unit.client.doubles import ReachableOptimizer, ScriptedMonitor
from tests.unit.client.fixtures import MakeOptimizer

METRICS = {"eval_accuracy": 0.1, "eval_loss": 2.0}


@pytest.fixture
def trial(bso: BatchSizeOptimizer) -> Iterator[Trial]:
    trials = bso.trials()
    with next(trials) as trial:
        yield trial
    trials.close()


@pytest.fixture
def reporter(trial: Trial) -> Reporter:
    reporter = Reporter(trial, "accuracy", names=("eval_accuracy", "accuracy"))
    reporter.begin(is_resumed=False)
    return reporter


def test_an_optimizer_in_the_place_of_its_trial_is_refused(bso: BatchSizeOptimizer) -> None:
    with pytest.raises(InvalidSetting, match="needs a trial, got BatchSizeOptimizer: call it inside `for trial in bso"):
        Reporter(bso, "accuracy")  # type: ignore[arg-type]  # that is what is tested


def test_an_evaluation_is_reported_at_its_epoch(reporter: Reporter, trial: Trial) -> None:
    assert not reporter.evaluated(METRICS, epoch=0.5)
    assert (trial.metric, trial.epoch) == (0.1, 0.5)


def test_a_second_evaluation_at_the_same_point_is_not(reporter: Reporter, trial: Trial) -> None:
    reporter.evaluated(METRICS, epoch=0.5)
    reporter.evaluated({"eval_accuracy": 0.99}, epoch=0.5)

    assert trial.metric == 0.1


def test_nothing_is_reported_after_the_end(reporter: Reporter, trial: Trial) -> None:
    assert reporter.evaluated({"accuracy": 0.95}, epoch=1.0)
    assert reporter.evaluated({"accuracy": 0.3}, epoch=2.0)
    assert (trial.metric, trial.outcome) == (0.95, Outcome.CONVERGED)


def test_the_trial_of_a_deleted_job_stops_the_trainer(
    reporter: Reporter, trial: Trial, optimizer: ReachableOptimizer
) -> None:
    trial.call_off("somebody else said so")

    assert reporter.evaluated(METRICS, epoch=1.0)
    assert trial.outcome is Outcome.CANCELLED


def test_a_batch_size_that_failed_meanwhile_stops_the_trainer(
    make_bso: MakeOptimizer, monitor: ScriptedMonitor
) -> None:
    bso = make_bso()
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.95)
    monitor.energy_j = 100.0
    trials = bso.trials()
    with next(trials) as trial:
        reporter = Reporter(trial, "eval_accuracy")
        reporter.begin(is_resumed=False)
        trial.on_evaluate(0.1)  # as if the verdict had come while the trainer trained on

        assert trial.outcome is Outcome.COST_EXCEEDED
        assert reporter.evaluated(METRICS, epoch=2.0)
    trials.close()


def test_the_copy_of_a_trial_reports_nothing_and_says_why(trial: Trial, caplog: pytest.LogCaptureFixture) -> None:
    reporter = Reporter(pickle.loads(pickle.dumps(trial)), "eval_accuracy")
    reporter.begin(is_resumed=False)

    assert not reporter.evaluated(METRICS, epoch=1.0)
    assert not reporter.evaluated(METRICS, epoch=2.0)
    reporter.end()
    refused = [record for record in caplog.records if getattr(record, "action", "") == "reports_refused"]
    assert len(refused) == 1
    assert "this is a copy of a trial in another process" in refused[0].message


def test_a_training_without_any_evaluation_is_called_off(reporter: Reporter, trial: Trial) -> None:
    reporter.end()

    assert trial.outcome is Outcome.CANCELLED
    assert "without an evaluation after its first step" in trial.outcome_reason


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"eval_acc": 0.1, "eval_loss": 2.0}, "there are eval_acc, eval_loss; did you mean 'eval_acc'?"),
        ({"val_loss": 2.0, "epoch": 1.0}, "there is val_loss"),
        ({"eval_runtime": 1.0, "eval_samples_per_second": 9.0, "epoch": 1.0}, "there is none at all"),
    ],
)
def test_a_missing_metric_is_reported_with_the_nearest_one(
    reporter: Reporter, trial: Trial, caplog: pytest.LogCaptureFixture, found: dict[str, float], words: str
) -> None:
    reporter.evaluated(found, epoch=1.0)
    reporter.end()

    missing = "the evaluation has no metric 'eval_accuracy' or 'accuracy'"
    [warning] = [record.message for record in caplog.records if getattr(record, "action", "") == "metric_missing"]
    assert warning == f"{missing}, so it is not reported: {words}"
    assert trial.outcome_reason == f"{missing}: {words}"


def test_a_training_that_reported_ends_with_its_block(reporter: Reporter, trial: Trial) -> None:
    reporter.evaluated(METRICS, epoch=1.0)
    reporter.end()

    assert trial.outcome is None


def test_progress_may_be_counted_in_samples(trial: Trial) -> None:
    reporter = Reporter(trial, "eval_accuracy", samples_per_epoch=200)
    reporter.begin(is_resumed=False)
    reporter.evaluated(METRICS, epoch=0.01, samples=300)

    assert trial.epoch == 1.5


def test_a_sentence_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("bso_client.once.said", set())
    for _ in range(2):
        warn_of_doubts(["eval_steps is rarely meant"])

    assert [record.message for record in caplog.records] == ["eval_steps is rarely meant"]
