"""Hugging Face Trainer with the real library: reports, stops, best models, resumption."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bso.domain.commands import ReportEpoch
from bso.domain.trial import Outcome
from bso_client import BatchSizeOptimizer, WrongOrder
from bso_client.integrations.transformers import BsoCallback, apply_trial
from tests.training.integrations.tiny import (
    Accuracies,
    accuracy,
    arguments,
    tiny_bert,
    trainer_for,
)
from tests.training.integrations.tiny_task import Classifier, FirstTokens
from tests.unit.client.doubles import ReachableOptimizer, ScriptedMonitor, job_spec
from tests.unit.client.fixtures import MakeOptimizer


def epochs_reported(optimizer: ReachableOptimizer) -> list[tuple[float, float]]:
    return [(command.epoch, command.metric) for command in optimizer.commands(ReportEpoch)]


def test_the_whole_story_ends_with_a_model_that_has_reached_the_target(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    base = arguments(tmp_path)
    for trial in bso.trials():
        args = apply_trial(base, trial)
        with trial:
            trainer = trainer_for(
                args,
                callback := BsoCallback(trial, metric="accuracy"),
                model=tiny_bert(),
                train_dataset=FirstTokens(512),
                compute_metrics=accuracy,
            )
            trainer.train()

    assert (trial.outcome, callback.outcome) == (Outcome.CONVERGED, Outcome.CONVERGED)
    assert trainer.evaluate()["eval_accuracy"] >= 0.9
    assert [trial.batch_size for trial in optimizer.trials()] == [16]


def test_a_training_that_reaches_the_target_stops_there(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    for trial in bso.trials():
        with trial:
            trainer = trainer_for(
                apply_trial(arguments(tmp_path), trial),
                BsoCallback(trial, metric="accuracy"),
                compute_metrics=Accuracies(0.1, 0.5, 0.95, 0.2),
            )
            trainer.train()

    assert trainer.state.epoch == 3.0
    assert epochs_reported(optimizer) == [(1.0, 0.1), (2.0, 0.5), (3.0, 0.95)]


def test_a_batch_size_that_is_too_costly_is_followed_by_another_one_in_the_same_loop(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, monitor: ScriptedMonitor, tmp_path: Path
) -> None:
    outcomes = []
    for energies_j in ([10.0], [100.0, 10.0]):
        for trial, monitor.energy_j in zip(bso.trials(), energies_j, strict=True):
            with trial:
                metrics = Accuracies(0.1) if monitor.energy_j == 100.0 else Accuracies(0.95)
                args = apply_trial(arguments(tmp_path), trial)
                trainer_for(args, BsoCallback(trial, metric="accuracy"), compute_metrics=metrics).train()
            outcomes.append(trial.outcome)

    assert outcomes == [Outcome.CONVERGED, Outcome.COST_EXCEEDED, Outcome.CONVERGED]


def test_evaluations_between_epochs_report_fractions_of_them(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    trials = bso.trials()
    trial = next(trials)
    args = apply_trial(arguments(tmp_path, eval_strategy="steps", eval_steps=3, num_train_epochs=2), trial)
    with trial:
        trainer_for(args, BsoCallback(trial, metric="accuracy")).train()

    assert [epoch for epoch, _ in epochs_reported(optimizer)] == [0.75, 1.5, 2.0]


def test_an_evaluation_before_the_first_step_is_not_reported(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    trial = next(trials := bso.trials())
    args = apply_trial(arguments(tmp_path, eval_on_start=True), trial)
    with trial:
        trainer_for(args, BsoCallback(trial, metric="accuracy"), compute_metrics=Accuracies(0.99, 0.1, 0.95)).train()
    trials.close()

    assert epochs_reported(optimizer) == [(1.0, 0.1), (2.0, 0.95)]


def test_evaluations_outside_of_train_are_not_reported(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    trial = next(trials := bso.trials())
    with trial:
        trainer = trainer_for(apply_trial(arguments(tmp_path), trial), BsoCallback(trial, metric="accuracy"))
        trainer.evaluate()
        trainer.train()
        trainer.evaluate()
    trials.close()

    assert [epoch for epoch, _ in epochs_reported(optimizer)] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_of_several_evaluation_sets_the_one_of_the_metric_is_reported(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial = next(trials := bso.trials())
    with trial:
        trainer_for(
            apply_trial(arguments(tmp_path), trial),
            BsoCallback(trial, metric="new_accuracy"),
            eval_dataset={"old": FirstTokens(16, seed=1), "new": FirstTokens(16, seed=2)},
            compute_metrics=Accuracies(0.3, 0.1, 0.3, 0.95),
        ).train()
    trials.close()

    assert epochs_reported(optimizer) == [(1.0, 0.1), (2.0, 0.95)]
    assert "metric_missing" not in {getattr(record, "action", None) for record in caplog.records}


def test_training_on_in_the_same_trial_adds_its_epochs(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    trial = next(trials := bso.trials())
    with trial:
        model, metrics = Classifier(), Accuracies(0.1, 0.1, 0.95)
        for epochs in (2, 3):
            args = apply_trial(arguments(tmp_path, num_train_epochs=epochs), trial)
            trainer_for(args, BsoCallback(trial, metric="accuracy"), model=model, compute_metrics=metrics).train()
    trials.close()

    assert epochs_reported(optimizer) == [(1.0, 0.1), (2.0, 0.1), (3.0, 0.95)]


@pytest.mark.parametrize("metric", ["accuracy", "eval_accuracy"])
def test_the_metric_is_found_with_and_without_its_prefix(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, metric: str
) -> None:
    trial = next(trials := bso.trials())
    with trial:
        callback = BsoCallback(trial, metric=metric)
        trainer_for(apply_trial(arguments(tmp_path), trial), callback, compute_metrics=Accuracies(0.95)).train()
    trials.close()

    assert callback.outcome is Outcome.CONVERGED


def test_a_loss_may_be_the_metric(make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path) -> None:
    bso = make_bso(job_spec(target_metric=100.0, higher_is_better_metric=False))
    trial = next(trials := bso.trials())
    with trial:
        trainer_for(
            apply_trial(arguments(tmp_path), trial), BsoCallback(trial, metric="loss"), compute_metrics=None
        ).train()
    trials.close()

    assert trial.outcome is Outcome.CONVERGED


def test_a_metric_that_is_missing_is_named_with_those_that_are_there_and_ends_the_loop(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for trial in bso.trials():
        with trial:
            trainer = trainer_for(apply_trial(arguments(tmp_path), trial), BsoCallback(trial, metric="f1"))
            trainer.train()

    assert trainer.state.epoch == 5.0
    assert [trial.outcome for trial in optimizer.trials()] == [Outcome.CANCELLED]
    warnings = [record.message for record in caplog.records if getattr(record, "action", "") == "metric_missing"]
    assert len(warnings) == 1
    assert "no metric 'eval_f1' or 'f1'" in warnings[0]
    assert "eval_accuracy, eval_loss" in warnings[0]
    assert "eval_accuracy" in trial.outcome_reason


def test_a_trainer_that_never_evaluates_calls_its_trial_off(
    bso: BatchSizeOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for trial in bso.trials():
        with trial:
            args = apply_trial(arguments(tmp_path, eval_strategy="no"), trial)
            trainer_for(args, BsoCallback(trial, metric="accuracy")).train()

    assert trial.outcome is Outcome.CANCELLED
    assert 'set eval_strategy="epoch"' in caplog.text


def test_a_trainer_with_another_batch_size_is_not_reported(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for trial in bso.trials():
        with trial:
            trainer = trainer_for(arguments(tmp_path), BsoCallback(trial, metric="accuracy"))
            trainer.train()

    assert trainer.state.epoch == 5.0
    assert epochs_reported(optimizer) == []
    assert "trains with batch size 8, but the trial is about 16" in trial.outcome_reason
    assert trial.outcome is Outcome.CANCELLED


def test_out_of_memory_goes_on_with_a_smaller_batch_size(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    for trial in bso.trials():
        with trial:
            trainer_for(
                apply_trial(arguments(tmp_path), trial),
                BsoCallback(trial, metric="accuracy"),
                model=Classifier(largest_batch=8),
                compute_metrics=Accuracies(0.95),
            ).train()

    assert [(trial.batch_size, trial.outcome) for trial in optimizer.trials()] == [
        (16, Outcome.INFEASIBLE),
        (8, Outcome.CONVERGED),
    ]


def test_not_a_number_twice_in_a_row_stops_the_trainer(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    trial = next(trials := bso.trials())
    with trial:
        trainer = trainer_for(
            apply_trial(arguments(tmp_path), trial),
            callback := BsoCallback(trial, metric="accuracy"),
            compute_metrics=Accuracies(float("nan")),
        )
        trainer.train()
    trials.close()

    assert (trainer.state.epoch, callback.outcome) == (2.0, Outcome.NOT_CONVERGED)


def test_a_metric_that_is_no_number_is_said_and_the_trainer_goes_on(
    bso: BatchSizeOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial = next(trials := bso.trials())
    with trial:
        trainer = trainer_for(
            apply_trial(arguments(tmp_path), trial),
            BsoCallback(trial, metric="classes"),
            compute_metrics=lambda _: {"classes": [0.1, 0.2]},
        )
        trainer.train()
    trials.close()

    assert trainer.state.epoch == 5.0
    assert "a metric is one number, got list" in caplog.text


def test_an_optimizer_that_is_away_does_not_end_the_training(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    bso = make_bso()
    trial = next(trials := bso.trials())
    optimizer.is_away = True
    with trial:
        trainer = trainer_for(
            apply_trial(arguments(tmp_path, num_train_epochs=1), trial),
            callback := BsoCallback(trial, metric="accuracy"),
            compute_metrics=Accuracies(0.95),
        )
        trainer.train()
    trials.close()

    assert callback.outcome is Outcome.CONVERGED


def test_samples_measure_progress_where_the_data_have_no_length(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]  # torch has no types here
        def __iter__(self) -> Iterator[Any]:
            return iter(FirstTokens())

    trial = next(trials := bso.trials())
    args = apply_trial(arguments(tmp_path, max_steps=8, eval_strategy="steps", eval_steps=0.25), trial)
    with trial:
        callback = BsoCallback(trial, metric="accuracy", samples_per_epoch=64)
        trainer_for(args, callback, train_dataset=Stream()).train()
    trials.close()

    assert [epoch for epoch, _ in epochs_reported(optimizer)] == [0.5, 1.0, 1.5, 2.0]
    assert "have no length" not in caplog.text


def test_progress_without_a_length_is_doubted(
    bso: BatchSizeOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]  # as above
        def __iter__(self) -> Iterator[Any]:
            return iter(FirstTokens())

    trial = next(trials := bso.trials())
    args = apply_trial(arguments(tmp_path, max_steps=2, eval_strategy="steps", eval_steps=0.5), trial)
    with trial:
        trainer_for(args, BsoCallback(trial, metric="accuracy"), train_dataset=Stream()).train()
    trials.close()

    assert "the training data have no length" in caplog.text


def test_a_training_outside_of_its_block_is_warned_and_goes_on(
    bso: BatchSizeOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial = next(trials := bso.trials())
    trainer = trainer_for(apply_trial(arguments(tmp_path), trial), BsoCallback(trial, metric="accuracy"))
    trainer.train()

    assert trainer.state.epoch == 5.0
    assert "put the training inside `with trial:`" in caplog.text
    with pytest.raises(WrongOrder, match="put it inside `with trial:`"):
        next(trials)
