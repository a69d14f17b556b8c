"""Lightning checkpoints hold the trial: both are resumed, and checkpoints are saved whatever the verdict."""

from pathlib import Path
from typing import Any

import lightning.pytorch
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from bso.domain.commands import ReportEpoch
from bso.domain.trial import Outcome
from bso_client import BatchSizeOptimizer
from bso_client.integrations.lightning import BsoCallback, checkpoint_of, resumable_trials
from tests.training.integrations.tiny_lightning import data_class, module_class, trainer_options
from tests.unit.client.doubles import ReachableOptimizer
from tests.unit.client.fixtures import MakeOptimizer

Model = module_class(lightning.pytorch)
Data = data_class(lightning.pytorch)


class Preempted(Exception):
    """The machine is taken away."""


class PreemptedAt(lightning.pytorch.Callback):  # type: ignore[misc]  # lightning has no types here
    """Raises when an update begins."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Any, *arguments: Any) -> None:
        if trainer.global_step == self.step:
            raise Preempted


def train(bso: BatchSizeOptimizer, folder: Path, *accuracies: float, preempted_at: int = -1) -> Any:
    """A script that can be started again at any time; the last Trainer."""
    last = folder / "last.ckpt"
    for trial in resumable_trials(bso, last):
        with trial:
            saving = ModelCheckpoint(dirpath=folder, save_last=True, enable_version_counter=False)
            callbacks = [BsoCallback(trial, monitor="val_acc"), PreemptedAt(preempted_at), saving]
            options = trainer_options(folder, enable_checkpointing=True)
            trainer = lightning.pytorch.Trainer(callbacks=callbacks, **options)
            trainer.fit(Model(*accuracies), Data().use(trial), ckpt_path=checkpoint_of(trial, last))
    return trainer


def reported(optimizer: ReachableOptimizer) -> list[tuple[float, float]]:
    return [(command.epoch, command.metric) for command in optimizer.commands(ReportEpoch)]


def test_a_preempted_trial_is_resumed_with_its_checkpoint(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    with pytest.raises(Preempted):
        train(make_bso(), tmp_path, 0.1, 0.2, preempted_at=10)
    trainer = train(make_bso(), tmp_path, 0.3, 0.95)

    assert reported(optimizer) == [(1.0, 0.1), (2.0, 0.2), (3.0, 0.3), (4.0, 0.95)]
    assert [(trial.trial_number, trial.outcome) for trial in optimizer.trials()] == [(1, Outcome.CONVERGED)]
    assert (trainer.current_epoch, trainer.global_step) == (4, 16)


def test_time_and_energy_go_on_where_the_checkpoint_was(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    with pytest.raises(Preempted):
        train(make_bso(), tmp_path, preempted_at=5)
    (kept,) = (torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"][name] for name in ["BsoCallback"])
    train(make_bso(), tmp_path, 0.95)

    assert optimizer.commands(ReportEpoch)[-1].energy_j == kept["consumed"]["energy_j"] + 10.0


def test_a_trial_that_has_ended_is_not_resumed_by_its_checkpoint(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    train(make_bso(), tmp_path, 0.95)
    trainer = train(make_bso(), tmp_path, 0.1, 0.95)

    assert trainer.current_epoch == 2
    assert [trial.outcome for trial in optimizer.trials()] == [Outcome.CONVERGED, Outcome.CONVERGED]


def test_a_trial_that_was_given_up_begins_anew(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Preempted):
        train(make_bso(), tmp_path, preempted_at=5)
    for _ in range(2):
        optimizer.let_leases_lapse(after_s=8 * 24 * 3600)
    trainer = train(make_bso(), tmp_path, 0.95)

    assert "training begins anew: trial 1 cannot be resumed" in caplog.text
    assert trainer.current_epoch == 1


def test_the_checkpoint_of_another_trial_is_said_to_be_one(
    make_bso: MakeOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Preempted):
        train(make_bso(), tmp_path, preempted_at=5)
    trial = next(trials := make_bso().trials())
    with trial:
        trainer = lightning.pytorch.Trainer(
            callbacks=[BsoCallback(trial, monitor="val_acc")], **trainer_options(tmp_path)
        )
        trainer.fit(Model(0.95), Data().use(trial), ckpt_path=tmp_path / "last.ckpt")
    trials.close()

    assert "the checkpoint is one of trial 1, but this is trial 2" in caplog.text


def test_the_best_model_is_saved_though_the_batch_size_failed(make_bso: MakeOptimizer, tmp_path: Path) -> None:
    train(make_bso(), tmp_path / "first", 0.95)
    trial = next(trials := make_bso().trials())
    with trial:
        best = ModelCheckpoint(dirpath=tmp_path, monitor="val_acc", mode="max")
        trainer = lightning.pytorch.Trainer(
            callbacks=[BsoCallback(trial, monitor="val_acc"), best],
            **trainer_options(tmp_path, enable_checkpointing=True),
        )
        trainer.fit(Model(0.2, 0.5, 0.1), Data().use(trial))
    trials.close()

    assert trial.outcome is Outcome.COST_EXCEEDED
    assert trainer.current_epoch < 5
    assert float(best.best_model_score) == pytest.approx(0.5)
    assert Path(best.best_model_path).is_file()


def test_a_file_that_is_no_checkpoint_is_an_error_that_says_so(bso: BatchSizeOptimizer, tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").write_bytes(b"no checkpoint")
    with pytest.raises(Exception, match="cannot be read"):
        next(resumable_trials(bso, tmp_path / "last.ckpt"))
