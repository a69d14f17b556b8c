"""Callbacks of the real zeus package in our sets, and ours in theirs."""

from pathlib import Path
from typing import Any

from zeus.callback import Callback as ZeusCallback
from zeus.callback import CallbackSet as ZeusCallbackSet

from bso_client import BatchSizeOptimizer, JobSpec, Outcome
from bso_client.integrations.callbacks import Callback, CallbackSet, OptimizerCallback


class Listener(ZeusCallback):  # type: ignore[misc]  # zeus is Any where it need not be installed
    """A callback as Zeus' users write them."""

    def __init__(self) -> None:
        self.received: list[object] = []

    def on_epoch_end(self) -> None:
        self.received.append("epoch")

    def on_evaluate(self, metric: float) -> None:
        self.received.append(metric)

    def on_instruction_begin(self, name: str) -> None:
        self.received.append(name)


def optimizer_in(folder: Path) -> BatchSizeOptimizer:
    spec = JobSpec(
        job_id="zeus",
        policy="pruning_thompson",
        batch_sizes=[8, 16],
        default_batch_size=16,
        target_metric=0.9,
        max_epochs=9,
    )
    return BatchSizeOptimizer(spec, url=f"sqlite:///{folder}/bso.sqlite", state_dir=folder, constant_power=1.0)


def run_hooks(callbacks: Callback | ZeusCallback, own: OptimizerCallback) -> None:
    metrics = iter([0.5, 0.95])
    callbacks.on_train_begin()
    while not own.training_finished:
        callbacks.on_epoch_begin()
        callbacks.on_step_begin()
        callbacks.on_instruction_begin("forward")
        callbacks.on_instruction_end("forward")
        callbacks.on_step_end()
        callbacks.on_epoch_end()
        callbacks.on_evaluate(next(metrics))
    callbacks.on_train_end()


def test_a_callback_of_zeus_works_in_a_set_of_ours(tmp_path: Path) -> None:
    listener = Listener()
    with optimizer_in(tmp_path) as bso:
        for trial in bso.trials():
            own = OptimizerCallback(trial)
            run_hooks(CallbackSet([own, listener]), own)
            assert trial.outcome is Outcome.CONVERGED
    assert listener.received == ["forward", "epoch", 0.5, "forward", "epoch", 0.95]


def test_a_callback_of_ours_works_in_a_set_of_zeus(tmp_path: Path) -> None:
    listener = Listener()
    with optimizer_in(tmp_path) as bso:
        for trial in bso.trials():
            own = OptimizerCallback(trial)
            both: list[Any] = [own, listener]
            run_hooks(ZeusCallbackSet(both), own)
            assert (trial.outcome, trial.epoch) == (Outcome.CONVERGED, 2.0)
    assert listener.received == ["forward", "epoch", 0.5, "forward", "epoch", 0.95]


def test_our_hooks_are_those_of_zeus() -> None:
    hooks = {name for name in vars(ZeusCallback) if name.startswith("on_")}

    assert {name for name in vars(Callback) if name.startswith("on_")} == hooks
    assert {name for name in vars(CallbackSet) if name.startswith("on_")} == hooks
