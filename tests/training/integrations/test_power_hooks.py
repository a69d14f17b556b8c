"""The power limit optimizer receives training steps, and nothing that lies between them."""

from pathlib import Path
from typing import Any

import lightning.pytorch
import pytest

from bso.domain.commands import ReportEpoch
from bso_client import BatchSizeOptimizer, PowerLimitOptimizer
from bso_client.integrations.lightning import BsoCallback as LightningCallback
from bso_client.integrations.transformers import BsoCallback, apply_trial
from tests.fakes import gpus as fake_gpus
from tests.fakes.simulated_training import SimulatedTraining, step_cost_j
from tests.training.integrations.tiny import Accuracies, arguments, trainer_for
from tests.training.integrations.tiny_lightning import data_class, module_class, trainer_options
from tests.training.integrations.tiny_task import Classifier
from tests.unit.client.doubles import ReachableOptimizer, job_spec
from tests.unit.client.fixtures import MakeOptimizer


class Recorded:
    """Records the calls of a power limit optimizer: e and E around rows of steps, s and S around each step."""

    def __init__(self, *, fails_at_step: int | None = None) -> None:
        self.calls = ""
        self._fails_at_step = fails_at_step

    def on_epoch_begin(self) -> None:
        self.calls += "e"

    def on_epoch_end(self) -> None:
        self.calls += "E "

    def on_step_begin(self) -> None:
        self.calls += "s"
        if self.calls.count("s") == self._fails_at_step:
            raise RuntimeError("the driver has gone")

    def on_step_end(self) -> None:
        self.calls += "S"


class Validations(lightning.pytorch.Callback):  # type: ignore[misc]  # lightning has no types here
    """Records validations among these calls; to stand before the trial's callback."""

    def __init__(self, received: Recorded) -> None:
        self.received = received

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.received.calls += "v"


def test_a_trainer_reports_its_steps_and_the_pauses_between_them(bso: BatchSizeOptimizer, tmp_path: Path) -> None:
    received = Recorded()

    def evaluate(predictions: Any) -> dict[str, float]:
        received.calls += "v"
        return {"accuracy": 0.1}

    trial = next(trials := bso.trials())
    args = apply_trial(
        arguments(tmp_path, num_train_epochs=2, eval_strategy="steps", eval_steps=3, eval_on_start=True), trial
    )
    with trial:
        callback = BsoCallback(trial, metric="accuracy", power_limit=received)
        trainer_for(args, callback, compute_metrics=evaluate).train()
    trials.close()

    assert received.calls == "vesSsSsSE vesSE esSsSE vesSsSE v"  # an epoch has four steps


def test_accumulated_batches_are_one_step(bso: BatchSizeOptimizer, tmp_path: Path) -> None:
    received = Recorded()
    trial = next(trials := bso.trials())
    args = apply_trial(arguments(tmp_path, num_train_epochs=1), trial, max_micro_batch_size=4)
    with trial:
        trainer_for(args, BsoCallback(trial, metric="accuracy", power_limit=received)).train()
    trials.close()

    assert received.calls == "esSsSsSsSE "


@pytest.mark.parametrize("max_micro_batch_size", [16, 4])
def test_lightning_reports_its_updates_and_the_pauses_between_them(
    bso: BatchSizeOptimizer, tmp_path: Path, max_micro_batch_size: int
) -> None:
    received = Recorded()
    trial = next(trials := bso.trials())
    data = data_class(lightning.pytorch)().use(trial, max_micro_batch_size=max_micro_batch_size)
    with trial:
        callbacks = [Validations(received), LightningCallback(trial, monitor="val_acc", power_limit=received)]
        options = trainer_options(
            tmp_path, max_epochs=2, val_check_interval=0.5, accumulate_grad_batches=data.accumulate_grad_batches
        )
        trainer = lightning.pytorch.Trainer(callbacks=callbacks, **options)
        trainer.fit(module_class(lightning.pytorch)(), data)
    trials.close()

    assert received.calls == "v" + "esSsSE v" * 4


def test_a_power_limit_that_fails_ends_no_training(
    bso: BatchSizeOptimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    received = Recorded(fails_at_step=3)
    trial = next(trials := bso.trials())
    with trial:
        trainer = trainer_for(
            apply_trial(arguments(tmp_path), trial), BsoCallback(trial, metric="accuracy", power_limit=received)
        )
        trainer.train()
    trials.close()

    assert trainer.state.epoch == 5.0
    assert received.calls == "esSsSs"
    assert "the power limit is left as it is" in caplog.text


def test_a_trainer_profiles_power_limits_and_the_next_recurrence_knows_the_best_one(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = fake_gpus.install(monkeypatch, tmp_path)
    gpus.add()
    training = SimulatedTraining(gpus)
    limits_w = (700.0, 450.0, 200.0)
    cheapest_w = min(limits_w, key=lambda limit_w: step_cost_j(limit_w, eta_knob=1.0, max_power_w=300.0))

    class Steps(Classifier):
        def forward(self, input_ids: Any, labels: Any = None) -> Any:
            if self.training:
                training.step()
            return super().forward(input_ids, labels)

    few: dict[str, Any] = {"warmup_steps": 0, "profile_steps": 1, "step_w": 250}
    for _ in range(2):
        bso = make_bso(job_spec(batch_sizes=[16], default_batch_size=16), monitor=training)
        with PowerLimitOptimizer(bso, monitor=training, lock_folder=tmp_path, **few) as power_limit:
            for trial in bso.trials():
                callback = BsoCallback(trial, metric="accuracy", power_limit=power_limit)
                args = apply_trial(arguments(tmp_path), trial)
                with trial:
                    trainer_for(args, callback, model=Steps(), compute_metrics=Accuracies(0.1, 0.95)).train()
        bso.close(timeout=5)

    assert training.limits_w[:5] == [700.0, 700.0, 450.0, 200.0, cheapest_w]  # the first step is waited for
    assert set(training.limits_w[8:]) == {cheapest_w}
    assert [report.is_profiling for report in optimizer.commands(ReportEpoch)] == [True, False, False, False]
    assert gpus.device(0)["limit_w"] == 700.0
