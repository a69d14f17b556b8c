"""Lightning with the real library, under both of its import names: reports, stops, checkpoints."""

from pathlib import Path
from typing import Any

import lightning.pytorch
import pytest
import pytorch_lightning
import torch

from bso.domain.commands import ReportEpoch
from bso.domain.trial import Outcome
from bso_client import BatchSizeOptimizer, LearningRate, WrongOrder
from bso_client.integrations import lightning as for_lightning
from bso_client.integrations import pytorch_lightning as for_pytorch_lightning
from bso_client.integrations.lightning import BsoCallback, TrialDataModule, learning_rate_for, start_ranks
from tests.training.integrations.tiny_lightning import data_class, module_class, trainer_options
from tests.training.integrations.tiny_task import FirstTokens
from tests.unit.client.doubles import ReachableOptimizer, ScriptedMonitor, job_spec
from tests.unit.client.fixtures import MakeOptimizer

Model = module_class(lightning.pytorch)
Data = data_class(lightning.pytorch)


def reported(optimizer: ReachableOptimizer) -> list[tuple[float, float]]:
    return [(command.epoch, command.metric) for command in optimizer.commands(ReportEpoch)]


def fit(
    trial: Any, folder: Path, *accuracies: float, model: Any = None, monitor: str = "val_acc", **chosen: Any
) -> Any:
    """Train the small task for a trial; returns the Trainer."""
    data = Data().use(trial)
    callback = BsoCallback(trial, monitor=monitor)
    trainer = lightning.pytorch.Trainer(callbacks=[callback], **trainer_options(folder, **chosen))
    trainer.fit(model or Model(*accuracies), data)
    return trainer


@pytest.mark.parametrize(
    ("library", "integration"),
    [(lightning.pytorch, for_lightning), (pytorch_lightning, for_pytorch_lightning)],
    ids=["lightning", "pytorch_lightning"],
)
def test_the_whole_story_under_either_name(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, library: Any, integration: Any
) -> None:
    for trial in bso.trials():
        data = data_class(library)().use(trial, max_micro_batch_size=8)
        callback = integration.BsoCallback(trial, monitor="val_acc")
        model = module_class(library)(0.1, 0.5, 0.95)
        with trial:
            options = trainer_options(tmp_path, accumulate_grad_batches=data.accumulate_grad_batches)
            trainer = library.Trainer(callbacks=callback, **options)
            trainer.fit(model, data)

    assert isinstance(callback, library.Callback)
    assert isinstance(data, library.LightningDataModule)
    assert reported(optimizer) == [(1.0, 0.1), (2.0, 0.5), (3.0, 0.95)]
    assert (set(model.batches_seen), trainer.global_step) == ({8}, 3 * 64 // 16)
    assert (trial.outcome, callback.outcome) == (Outcome.CONVERGED, Outcome.CONVERGED)


def test_a_run_that_tries_a_script_out_is_no_training(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for trial in bso.trials():
        with trial:
            fit(trial, tmp_path, 0.95, fast_dev_run=True)

    assert reported(optimizer) == []
    assert [(row.outcome, "fast_dev_run" in row.outcome_reason) for row in optimizer.trials()] == [
        (Outcome.CANCELLED, True)
    ]
    assert "hard to compare" not in caplog.text


def test_a_training_without_a_batch_is_called_off_with_the_reason(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    class Dropped(data_class(lightning.pytorch)):  # type: ignore[misc]  # lightning has no types here
        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(FirstTokens(8), batch_size=self.batch_size, drop_last=True)

    for trial in bso.trials():
        with trial:
            callback = BsoCallback(trial, monitor="val_acc")
            trainer = lightning.pytorch.Trainer(callbacks=[callback], **trainer_options(tmp_path))
            trainer.fit(Model(0.95), Dropped().use(trial))

    [row] = optimizer.trials()
    assert row.outcome is Outcome.CANCELLED
    assert f"the training data have no batch: with batch size {row.batch_size}" in row.outcome_reason


def test_a_checkpoint_at_the_last_epoch_is_no_loader_without_a_batch(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    trial = next(trials := bso.trials())
    with trial:
        trainer = fit(trial, tmp_path, 0.1, max_epochs=1)
        last = tmp_path / "last.ckpt"
        trainer.save_checkpoint(last)
        again = BsoCallback(trial, monitor="val_acc")
        options = trainer_options(tmp_path, max_epochs=1)
        lightning.pytorch.Trainer(callbacks=[again], **options).fit(Model(0.1), Data().use(trial), ckpt_path=last)
    trials.close()

    [row] = optimizer.trials()
    assert (row.outcome, row.reports) == (Outcome.NOT_CONVERGED, 1)


def test_a_batch_size_that_is_too_costly_is_followed_by_another_one_in_the_same_loop(
    bso: BatchSizeOptimizer, monitor: ScriptedMonitor, tmp_path: Path
) -> None:
    outcomes = []
    for energies_j in ([10.0], [100.0, 10.0]):
        for trial, monitor.energy_j in zip(bso.trials(), energies_j, strict=True):
            with trial:
                fit(trial, tmp_path, 0.1 if monitor.energy_j == 100.0 else 0.95)
            outcomes.append(trial.outcome)

    assert outcomes == [Outcome.CONVERGED, Outcome.COST_EXCEEDED, Outcome.CONVERGED]


@pytest.mark.parametrize(
    ("chosen", "epochs"),
    [
        ({"val_check_interval": 0.5, "max_epochs": 2}, [0.5, 1.0, 1.5, 2.0]),
        ({"val_check_interval": 3, "check_val_every_n_epoch": None, "max_epochs": 3}, [0.75, 1.5, 2.25, 3.0]),
        ({"check_val_every_n_epoch": 2, "max_epochs": 4}, [2.0, 4.0]),
        ({"limit_train_batches": 2, "max_epochs": 2}, [1.0, 2.0]),
    ],
)
def test_progress_is_that_of_the_epochs(
    bso: BatchSizeOptimizer,
    optimizer: ReachableOptimizer,
    tmp_path: Path,
    chosen: dict[str, Any],
    epochs: list[float],
) -> None:
    trial = next(trials := bso.trials())
    with trial:
        fit(trial, tmp_path, **chosen)
    trials.close()

    assert [epoch for epoch, _ in reported(optimizer)] == epochs


def test_a_stop_in_the_middle_of_an_epoch_stops_there(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    trial = next(trials := bso.trials())
    with trial:
        trainer = fit(trial, tmp_path, 0.1, 0.1, 0.95, val_check_interval=0.5)
    trials.close()

    assert trainer.global_step == 6
    assert reported(optimizer)[-1] == (1.5, 0.95)


def test_the_sanity_check_and_later_validations_are_not_reported(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    trial = next(trials := bso.trials())
    with trial:
        model = Model(0.1, 0.95)
        trainer = fit(trial, tmp_path, model=model, num_sanity_val_steps=2)
        trainer.validate(model, datamodule=Data().use(trial))
    trials.close()

    assert reported(optimizer) == [(1.0, 0.1), (2.0, 0.95)]


def test_min_epochs_are_trained_and_not_reported(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial = next(trials := bso.trials())
    with trial:
        trainer = fit(trial, tmp_path, 0.95, 0.2, min_epochs=3)
    trials.close()

    assert trainer.current_epoch == 3
    assert reported(optimizer) == [(1.0, 0.95)]
    assert "min_epochs=3" in caplog.text


def test_a_metric_of_the_training_is_reported_after_each_epoch(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    bso = make_bso(job_spec(target_metric=-1.0, higher_is_better_metric=False))
    for chosen in ({}, {"limit_val_batches": 0}):
        trial = next(trials := bso.trials())
        with trial:
            fit(trial, tmp_path, monitor="train_loss", max_epochs=2, **chosen)
        trials.close()

    assert [epoch for epoch, _ in reported(optimizer)] == [1.0, 2.0] * 2
    assert len({metric for _, metric in reported(optimizer)}) == 4


def test_a_metric_that_is_missing_is_named_with_those_that_are_there_and_ends_the_loop(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for trial in bso.trials():
        with trial:
            trainer = fit(trial, tmp_path, monitor="val_f1", max_epochs=3)

    assert trainer.current_epoch == 3
    assert [trial.outcome for trial in optimizer.trials()] == [Outcome.CANCELLED]
    warnings = [record.message for record in caplog.records if getattr(record, "action", "") == "metric_missing"]
    assert len(warnings) == 1
    assert "no metric 'val_f1', so it is not reported: there are train_loss, val_acc" in warnings[0]


def test_a_loader_with_another_batch_size_is_not_reported(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    for trial in bso.trials():
        with trial:
            trainer = lightning.pytorch.Trainer(
                callbacks=[BsoCallback(trial, monitor="val_acc")], **trainer_options(tmp_path, max_epochs=2)
            )
            trainer.fit(Model(0.95), torch.utils.data.DataLoader(FirstTokens(), batch_size=4))

    assert trainer.current_epoch == 2
    assert reported(optimizer) == []
    assert (
        "batch size 4 (loader 4 x accumulate_grad_batches 1 x 1 processes), but the trial is about 16"
        in trial.outcome_reason
    )


def test_samples_measure_progress_where_the_data_have_no_length(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]  # torch has no types here
        def __iter__(self) -> Any:
            return iter(FirstTokens())

    trial = next(trials := bso.trials())
    with trial:
        callback = BsoCallback(trial, monitor="val_acc", samples_per_epoch=64)
        trainer = lightning.pytorch.Trainer(
            callbacks=[callback], **trainer_options(tmp_path, max_epochs=2, val_check_interval=2)
        )
        loader = torch.utils.data.DataLoader(Stream(), batch_size=16)
        trainer.fit(Model(), loader, Data().use(trial).val_dataloader())
    trials.close()

    assert [epoch for epoch, _ in reported(optimizer)] == [0.5, 1.0, 1.5, 2.0]


def test_out_of_memory_goes_on_with_a_smaller_batch_size(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    for trial in bso.trials():
        with trial:
            fit(trial, tmp_path, model=Model(0.95, largest_batch=8))

    assert [(trial.batch_size, trial.outcome) for trial in optimizer.trials()] == [
        (16, Outcome.INFEASIBLE),
        (8, Outcome.CONVERGED),
    ]


def test_an_exception_interrupts_the_trial_and_goes_on(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    class Broken(Model):  # type: ignore[misc,valid-type]  # as above
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise RuntimeError("a bug in the model")

    with pytest.raises(RuntimeError, match="a bug in the model"):  # noqa: PT012  # as users write it
        for trial in bso.trials():
            with trial:
                fit(trial, tmp_path, model=Broken())

    assert [(trial.outcome, trial.outcome_reason) for trial in optimizer.trials()] == [
        (Outcome.INTERRUPTED, "RuntimeError: a bug in the model")
    ]


def test_an_optimizer_that_is_away_does_not_end_the_training(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    trial = next(trials := bso.trials())
    optimizer.is_away = True
    with trial:
        fit(trial, tmp_path, 0.95)
    trials.close()

    assert trial.outcome is Outcome.CONVERGED


def test_not_a_number_twice_in_a_row_stops_the_trainer(bso: BatchSizeOptimizer, tmp_path: Path) -> None:
    trial = next(trials := bso.trials())
    with trial:
        trainer = fit(trial, tmp_path, float("nan"))
    trials.close()

    assert (trainer.current_epoch, trial.outcome) == (2, Outcome.NOT_CONVERGED)


def test_the_learning_rate_is_the_trials_where_there_is_a_rule(make_bso: MakeOptimizer) -> None:
    rate = LearningRate(0.1, reference_batch_size=8)
    with_rule = next(first := make_bso(learning_rate=rate).trials())
    without = next(second := make_bso(job_spec(job_id="other")).trials())
    optimizers = [
        Model(learning_rate=learning_rate_for(trial, otherwise=0.3)).configure_optimizers()
        for trial in (with_rule, without)
    ]
    first.close()
    second.close()

    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [pytest.approx(0.2), 0.3]


def test_a_data_module_without_its_trial_says_what_comes_first() -> None:
    with pytest.raises(WrongOrder, match=r"Data has no batch size yet: call use\(trial\)"):
        _ = Data().batch_size


def test_a_data_module_that_sets_a_batch_size_of_its_own_is_refused() -> None:
    class Stubborn(TrialDataModule, lightning.pytorch.LightningDataModule):  # type: ignore[misc]  # as above
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 32

    with pytest.raises(WrongOrder, match="batch_size=32 was set on Stubborn, whose trial decides it"):
        Stubborn()


def test_one_process_needs_no_others(tmp_path: Path) -> None:
    start_ranks(lightning.pytorch.Trainer(**trainer_options(tmp_path)))

    assert not torch.distributed.is_initialized()


def test_a_strategy_that_spawns_is_refused(tmp_path: Path) -> None:
    from bso_client import InvalidSetting

    trainer = lightning.pytorch.Trainer(**trainer_options(tmp_path, devices=2, strategy="ddp_spawn"))
    with pytest.raises(InvalidSetting, match='choose strategy="ddp"'):
        start_ranks(trainer)
