"""A Lightning Trainer that probes epoch costs by itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from lightning.pytorch.loggers.logger import DummyLogger

from bso.domain.commands import ReportEpochCosts
from bso.domain.trial import Outcome
from bso_client.integrations.lightning import BsoCallback
from tests.training.integrations.tiny_lightning import data_class, trainer_options
from tests.unit.client.doubles import ReachableOptimizer, job_spec
from tests.unit.client.fixtures import MakeOptimizer

Data = data_class(pl)


class Model(pl.LightningModule):  # type: ignore[misc]  # lightning has no types here
    """A model with dropout, batch normalization, a metric with a state, and a training step that logs and counts."""

    def __init__(self, *, is_manual: bool = False, uses_logger: bool = False, steers: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Embedding(20, 4),
            torch.nn.Flatten(),
            torch.nn.BatchNorm1d(24),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(24, 2),
        )
        self.accuracy = torchmetrics.Accuracy(task="binary")
        self.automatic_optimization = not is_manual
        self.uses_logger, self.steers = uses_logger, steers
        self.steps = 0
        self.sums: list[float] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Any:
        self.steps += 1
        found = self.net(batch["input_ids"])
        self.accuracy.update(found.argmax(dim=1), batch["labels"])
        loss = torch.nn.functional.cross_entropy(found, batch["labels"])
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        if self.uses_logger:
            self.logger.log_metrics({"steps": self.steps})
        if self.steers and self.current_epoch < self.trainer.max_epochs:
            self.trainer.optimizers[0].param_groups[0]["lr"] *= 0.99
        self.log_dict({"train_acc": self.accuracy.compute()})
        if not self.automatic_optimization:
            self.manual_backward(loss)
            self.optimizers().step()
        return {"loss": loss}

    def on_train_epoch_end(self) -> None:
        self.sums.append(float(self.trainer.callback_metrics["train_loss_epoch"]))
        self.sums.append(float(self.accuracy.compute()))
        self.accuracy.reset()

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.log("val_acc", 0.1)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def trained(
    make_bso: MakeOptimizer,
    folder: Path,
    job_id: str,
    *,
    is_manual: bool = False,
    uses_logger: bool = False,
    steers: bool = False,
    make_data: Callable[[], Any] = Data,
    max_micro_batch_size: int | None = None,
    **chosen: Any,
) -> list[Any]:
    """All that is left of the first training of a job."""
    spec = job_spec(job_id=job_id, batch_sizes=[8, 16, 32], default_batch_size=16, max_epochs=100, probing_budget=0.5)
    bso = make_bso(spec)
    trial = next(trials := bso.trials())
    with trial:
        pl.seed_everything(4, verbose=False)
        model = Model(is_manual=is_manual, uses_logger=uses_logger, steers=steers)
        data = make_data().use(trial, max_micro_batch_size=max_micro_batch_size)
        chosen["accumulate_grad_batches"] = data.accumulate_grad_batches
        options = trainer_options(folder, max_epochs=8, **chosen)
        pl.Trainer(callbacks=[BsoCallback(trial, monitor="val_acc")], **options).fit(model, data)
    trials.close()
    bso.close()
    assert (trial.batch_size, trial.outcome) == (16, Outcome.NOT_CONVERGED)
    state = {name: value.tolist() for name, value in model.state_dict().items()}
    return [state, model.steps, model.sums, torch.rand(1).item()]


@pytest.mark.usefixtures("even_steps")
@pytest.mark.parametrize("chosen", [{}, {"val_check_interval": 0.5}], ids=["each epoch", "twice an epoch"])
def test_it_probes_and_trains_as_it_would_without(
    make_bso: MakeOptimizer,
    optimizer: ReachableOptimizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chosen: dict[str, Any],
) -> None:
    monkeypatch.setenv("BSO_PROBING", "off")
    without = trained(make_bso, tmp_path, "plain", **chosen)
    assert optimizer.commands(ReportEpochCosts) == []
    monkeypatch.setenv("BSO_PROBING", "on")
    assert trained(make_bso, tmp_path, "probed", **chosen) == without
    assert {one.batch_size for sent in optimizer.commands(ReportEpochCosts) for one in sent.probes} == {8, 16, 32}


@pytest.mark.usefixtures("even_steps")
def test_another_trainer_that_goes_on_with_the_same_trial_probes_as_well(
    make_bso: MakeOptimizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BSO_PROBING", "on")
    spec = job_spec(job_id="twice", batch_sizes=[8, 16, 32], default_batch_size=16, max_epochs=100, probing_budget=0.5)
    trial = next(trials := make_bso(spec).trials())
    with trial:
        model, data, callback = Model(), Data().use(trial), BsoCallback(trial, monitor="val_acc")
        for _ in range(2):
            pl.Trainer(callbacks=[callback], **trainer_options(tmp_path, max_epochs=3)).fit(model, data)
    trials.close()
    assert trial.epoch == 6.0
    assert "not probed" not in caplog.text


class NoisyData(Data):  # type: ignore[misc, valid-type]  # made by a function
    """It changes batches by itself."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


@pytest.mark.usefixtures("even_steps")
def test_a_step_that_changes_its_trainer_is_not_probed_and_trains_as_ever(
    make_bso: MakeOptimizer,
    optimizer: ReachableOptimizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("BSO_PROBING", "off")
    without = trained(make_bso, tmp_path, "plain", steers=True)
    monkeypatch.setenv("BSO_PROBING", "on")
    assert trained(make_bso, tmp_path, "steered", steers=True) == without
    assert not any(sent.probes for sent in optimizer.commands(ReportEpochCosts))
    assert "the training step uses its Trainer's optimizers, which a probe could change" in caplog.text


@pytest.mark.usefixtures("even_steps")
@pytest.mark.parametrize(
    "chosen",
    [{"max_micro_batch_size": 8}, {"is_manual": True}, {"make_data": NoisyData}],
    ids=["accumulated", "manual", "batches changed by the data"],
)
def test_where_a_step_would_be_another_nothing_is_probed(
    make_bso: MakeOptimizer,
    optimizer: ReachableOptimizer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    chosen: dict[str, Any],
) -> None:
    trained(make_bso, tmp_path, "job", **chosen)
    assert optimizer.commands(ReportEpochCosts) == []
    assert "not probed" not in caplog.text


class Kept(DummyLogger):  # type: ignore[misc]  # lightning has no types here
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics: list[Any] = []

    def log_metrics(self, metrics: Any, step: Any = None) -> None:
        self.metrics.append((dict(metrics), step))


@pytest.mark.usefixtures("even_steps")
def test_a_step_that_uses_a_logger_itself_is_not_probed_and_logs_as_ever(
    make_bso: MakeOptimizer,
    optimizer: ReachableOptimizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    probing, plain = Kept(), Kept()
    found = trained(make_bso, tmp_path, "probed", uses_logger=True, logger=probing)
    assert "epoch costs are not probed any more" in caplog.text
    assert [each for command in optimizer.commands(ReportEpochCosts) for each in command.probes] == []
    monkeypatch.setenv("BSO_PROBING", "off")
    assert trained(make_bso, tmp_path, "plain", uses_logger=True, logger=plain) == found
    assert probing.metrics == plain.metrics
