"""Trainings with checkpoints: the best model is loaded, models are saved, and trials are resumed with them."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback, TrainerState
from transformers.trainer_utils import get_last_checkpoint

from bso.domain.commands import ReportEpoch
from bso.domain.trial import Outcome, TrialState
from bso_client import BatchSizeOptimizer
from bso_client.integrations.transformers import BsoCallback, apply_trial, resumable_trials
from tests.training.integrations.tiny import Accuracies, arguments, trainer_for
from tests.unit.client.doubles import ReachableOptimizer
from tests.unit.client.fixtures import MakeOptimizer

BEST_BY_ACCURACY = {"load_best_model_at_end": True, "metric_for_best_model": "accuracy"}


class Preempted(Exception):
    """The machine is taken away."""


class PreemptedAt(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Raises when a step begins."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise Preempted


class TermAt(TrainerCallback):  # type: ignore[misc]  # as above
    """What a scheduler that preempts sends."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def interrupted(bso: BatchSizeOptimizer, folder: Path, *, at_step: int, **chosen: Any) -> None:
    """A training that saves after each epoch of four steps, and is preempted."""
    base = arguments(folder, save_strategy="epoch", **chosen)
    with pytest.raises(Preempted):  # noqa: PT012  # as users write it
        for trial in resumable_trials(bso, base):
            with trial:
                callbacks = BsoCallback(trial, metric="accuracy"), PreemptedAt(at_step)
                args = apply_trial(base, trial)
                trainer_for(args, *callbacks).train(resume_from_checkpoint=args.resume_from_checkpoint)


def finished(bso: BatchSizeOptimizer, folder: Path, *accuracies: float) -> Any:
    """The same training to its end; the last Trainer."""
    base = arguments(folder, save_strategy="epoch")
    for trial in resumable_trials(bso, base):
        with trial:
            args = apply_trial(base, trial)
            callback = BsoCallback(trial, metric="accuracy")
            trainer = trainer_for(args, callback, compute_metrics=Accuracies(*accuracies))
            trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    return trainer


def test_the_best_model_is_loaded_after_a_failed_trial(bso: BatchSizeOptimizer, tmp_path: Path) -> None:
    finished(bso, tmp_path / "first", 0.95)
    trial = next(trials := bso.trials())
    args = apply_trial(arguments(tmp_path, save_strategy="epoch", **BEST_BY_ACCURACY), trial)
    with trial:
        trainer = trainer_for(
            args, BsoCallback(trial, metric="accuracy"), compute_metrics=Accuracies(0.5, 0.4, 0.3, 0.2)
        )
        trainer.train()
        best = trainer.state.best_model_checkpoint
        loaded = {name: values.clone() for name, values in trainer.model.state_dict().items()}
    trials.close()

    assert trial.outcome is Outcome.COST_EXCEEDED
    assert trainer.state.epoch == 2.0
    assert Path(best).name == "checkpoint-8"  # batch size 8: eight steps an epoch, and the first was the best
    trainer._load_best_model()
    assert all(bool((loaded[name] == values).all()) for name, values in trainer.model.state_dict().items())


def test_the_model_that_has_converged_is_the_one_that_is_left(bso: BatchSizeOptimizer, tmp_path: Path) -> None:
    trial = next(trials := bso.trials())
    saved_less_often = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 4}
    args = apply_trial(arguments(tmp_path, **saved_less_often, **BEST_BY_ACCURACY), trial)
    with trial:
        metrics = Accuracies(0.1, 0.2, 0.3, 0.8, 0.2, 0.95)
        trainer = trainer_for(args, BsoCallback(trial, metric="accuracy"), compute_metrics=metrics)
        trainer.train()
    trials.close()

    assert trial.outcome is Outcome.CONVERGED
    assert trainer.state.best_metric == 0.95
    assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-6"


def test_a_best_model_by_another_metric_is_doubted(
    bso: BatchSizeOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial = next(trials := bso.trials())
    args = apply_trial(arguments(tmp_path, save_strategy="epoch", load_best_model_at_end=True), trial)
    with trial:
        trainer_for(args, BsoCallback(trial, metric="accuracy"), compute_metrics=Accuracies(0.95)).train()
    trials.close()

    assert "which need not have reached the target of accuracy" in caplog.text


def test_a_preempted_trial_is_resumed_with_its_checkpoint(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    interrupted(make_bso(), tmp_path, at_step=10)
    trainer = finished(make_bso(), tmp_path, 0.2, 0.95)

    reports = [(report.epoch, report.metric) for report in optimizer.commands(ReportEpoch)]
    assert reports == [(1.0, 0.1), (2.0, 0.1), (3.0, 0.2), (4.0, 0.95)]
    assert [(trial.trial_number, trial.outcome) for trial in optimizer.trials()] == [(1, Outcome.CONVERGED)]
    assert [entry["step"] for entry in trainer.state.log_history if "eval_accuracy" in entry] == [4, 8, 12, 16]


def test_time_and_energy_go_on_where_the_checkpoint_was(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    interrupted(make_bso(), tmp_path, at_step=10)
    finished(make_bso(), tmp_path, 0.95)

    energies = [report.energy_j for report in optimizer.commands(ReportEpoch)]
    kept_after_second_report = 30.0  # two windows of 10 J up to the reports, one up to the checkpoint each time
    assert energies[-1] > energies[-2]
    assert energies[-1] == kept_after_second_report + 20.0


def test_a_checkpoint_of_a_trial_that_has_ended_is_not_resumed(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(make_bso(), tmp_path, at_step=10)
    optimizer.let_leases_lapse(after_s=8 * 24 * 3600)
    optimizer.let_leases_lapse(after_s=8 * 24 * 3600)
    trainer = finished(make_bso(), tmp_path, 0.95)
    again = finished(make_bso(), tmp_path, 0.95)

    assert "training begins anew: trial 1 cannot be resumed" in caplog.text
    assert trainer.args.resume_from_checkpoint is None
    assert [trial.outcome for trial in optimizer.trials()] == [
        Outcome.INTERRUPTED,
        Outcome.CONVERGED,
        Outcome.CONVERGED,
    ]
    assert again.state.epoch == 1.0


def test_each_trial_has_a_folder_of_its_own_and_what_has_ended_is_never_resumed(
    make_bso: MakeOptimizer, tmp_path: Path
) -> None:
    folders = [finished(make_bso(), tmp_path, 0.95).args.output_dir for _ in range(2)]

    assert [Path(folder).name for folder in folders] == ["trial-1", "trial-2"]
    assert all(get_last_checkpoint(folder) for folder in folders)
    assert not list(tmp_path.rglob("bso_trial.json"))


def test_a_damaged_file_leads_to_a_training_from_the_beginning(
    make_bso: MakeOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(make_bso(), tmp_path, at_step=5)
    (kept,) = tmp_path.rglob("bso_trial.json")
    kept.write_text("{", encoding="utf-8")
    trainer = finished(make_bso(), tmp_path, 0.95)

    assert f"{kept} is damaged" in caplog.text
    assert trainer.state.epoch == 1.0


@pytest.mark.parametrize("damage", ["", '{"tr', "[]"])
def test_where_the_newest_file_is_damaged_the_trial_is_resumed_from_the_one_before(
    make_bso: MakeOptimizer,
    optimizer: ReachableOptimizer,
    tmp_path: Path,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    interrupted(make_bso(), tmp_path, at_step=10)
    *_, before, newest = sorted(tmp_path.rglob("bso_trial.json"), key=lambda kept: int(kept.parent.name.split("-")[-1]))
    newest.write_text(damage, encoding="utf-8")
    trainer = finished(make_bso(), tmp_path, 0.95)

    assert f"{newest} is damaged" in caplog.text
    assert trainer.args.resume_from_checkpoint == str(before.parent)
    assert [(trial.trial_number, trial.outcome) for trial in optimizer.trials()] == [(1, Outcome.CONVERGED)]


def test_a_checkpoint_that_sigterm_asks_for_suspends_the_trial(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    bso, base = make_bso(), arguments(tmp_path, enable_jit_checkpoint=True, eval_strategy="steps", eval_steps=1)
    for trial in resumable_trials(bso, base):
        with trial:
            args = apply_trial(base, trial)
            trainer = trainer_for(args, BsoCallback(trial, metric="accuracy"), TermAt(2))
            at_once(trainer)
            trainer.train()

    assert trainer.state.global_step < 20
    assert [trial.state for trial in optimizer.trials()] == [TrialState.SUSPENDED]
    assert (Path(get_last_checkpoint(args.output_dir)) / "bso_trial.json").is_file()


def at_once(trainer: Any) -> None:
    """Let the Trainer save without waiting for a SIGKILL first."""
    for callback in trainer.callback_handler.callbacks:
        manager = getattr(callback, "jit_manager", None)
        if manager is not None:
            manager.kill_wait = 0


def test_storage_that_refuses_to_delete_ends_no_training(
    make_bso: MakeOptimizer,
    optimizer: ReachableOptimizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError(f"{path} may not be deleted")

    with monkeypatch.context() as storage:
        storage.setattr(Path, "unlink", refuse)
        finished(make_bso(), tmp_path, 0.5, 0.95)
        finished(make_bso(), tmp_path, 0.95)

    assert [trial.outcome for trial in optimizer.trials()] == [Outcome.CONVERGED, Outcome.CONVERGED]
    assert "may not be deleted" in caplog.text
    assert "training begins anew: trial 1 cannot be resumed" in caplog.text
