import logging

import pytest

from bso.domain.commands import ReportEpoch
from bso_client import RELAUNCH, BatchSizeOptimizer, InvalidSetting, Outcome, TrainFailed, WrongOrder
from bso_client.integrations.callbacks import Callback, CallbackSet, OptimizerCallback
from tests.unit.client.doubles import ReachableOptimizer

HOOKS = {
    "on_train_begin": (),
    "on_epoch_begin": (),
    "on_step_begin": (),
    "on_instruction_begin": ("forward",),
    "on_instruction_end": ("forward",),
    "on_step_end": (),
    "on_epoch_end": (),
    "on_evaluate": (0.5,),
    "on_train_end": (),
}


class Recorder(Callback):
    """Records its calls."""

    def __init__(self, name: str, noted: list[tuple[object, ...]]) -> None:
        self.name = name
        self.noted = noted

    def on_train_begin(self) -> None:
        self.noted.append((self.name, "on_train_begin"))

    def on_evaluate(self, metric: float) -> None:
        self.noted.append((self.name, "on_evaluate", metric))


class Broken(Callback):
    def on_evaluate(self, metric: float) -> None:
        raise OSError("no space")


class PowerLimit:
    """Writes down the hooks that a power limit optimizer has."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def on_epoch_begin(self) -> None:
        self.noted.append("epoch (")

    def on_epoch_end(self) -> None:
        self.noted.append(") epoch")

    def on_step_begin(self) -> None:
        self.noted.append("step (")

    def on_step_end(self) -> None:
        self.noted.append(") step")


def train(callbacks: Callback, own: OptimizerCallback, *, metric: float = 0.1, epochs: int = 9) -> None:
    """A training loop that knows nothing but hooks."""
    callbacks.on_train_begin()
    for _ in range(epochs):
        if own.training_finished:
            break
        callbacks.on_epoch_begin()
        for _step in range(2):
            callbacks.on_step_begin()
            callbacks.on_instruction_begin("forward")
            callbacks.on_instruction_end("forward")
            callbacks.on_step_end()
        callbacks.on_epoch_end()
        callbacks.on_evaluate(metric)
    callbacks.on_train_end()


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_may_be_left_out(hook: str) -> None:
    assert getattr(Callback(), hook)(*HOOKS[hook]) is None
    assert getattr(CallbackSet([Callback(), object()]), hook)(*HOOKS[hook]) is None


@pytest.mark.parametrize("hook", HOOKS)
def test_a_set_passes_every_hook_on_in_order(hook: str) -> None:
    noted: list[tuple[object, ...]] = []

    class Listener:
        def __init__(self, name: str) -> None:
            setattr(self, hook, lambda *arguments: noted.append((name, *arguments)))

    getattr(CallbackSet([Listener("a"), CallbackSet([Listener("b")]), Listener("c")]), hook)(*HOOKS[hook])

    assert noted == [(name, *HOOKS[hook]) for name in "abc"]


def test_all_callbacks_are_called_before_the_first_exception_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    noted: list[tuple[object, ...]] = []
    callbacks = CallbackSet([Recorder("a", noted), Broken(), Broken(), Recorder("b", noted)])
    with pytest.raises(OSError, match="no space"):
        callbacks.on_evaluate(0.5)

    assert noted == [("a", "on_evaluate", 0.5), ("b", "on_evaluate", 0.5)]
    assert [record.__dict__["action"] for record in caplog.records if record.levelno == logging.ERROR] == [
        "callback_failed"
    ]


def test_a_training_reports_and_stops_by_callbacks_alone(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    seen: list[tuple[object, ...]] = []
    for trial in bso.trials():
        callback = OptimizerCallback(trial)
        train(CallbackSet([callback]), callback, metric=0.1 if not seen else 0.95)
        seen.append((callback.trial.batch_size, trial.epoch, trial.outcome))

    assert seen == [(64, 5.0, Outcome.NOT_CONVERGED), (128, 1.0, Outcome.CONVERGED)]
    assert [(trial.outcome, trial.reports) for trial in optimizer.trials()] == [
        (Outcome.NOT_CONVERGED, 5),
        (Outcome.CONVERGED, 1),
    ]


def test_a_with_block_around_the_hooks_begins_and_ends_the_trial_itself(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    for trial in bso.trials():
        with trial:
            callback = OptimizerCallback(trial)
            train(callback, callback, metric=0.5, epochs=1)
            assert not trial.finished, "the block ends it"
            trial.on_evaluate(0.95)

    assert [trial.outcome for trial in optimizer.trials()] == [Outcome.CONVERGED]


def test_a_training_that_ends_by_itself_without_its_target_has_failed(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    trials = bso.trials()
    callback = OptimizerCallback(next(trials))
    train(callback, callback, metric=0.5, epochs=2)

    assert (callback.trial.outcome, callback.trial.epoch) == (Outcome.NOT_CONVERGED, 2.0)
    assert "the metric was 0.5 after 2 epochs" in callback.trial.outcome_reason


def test_with_the_optimizer_itself_a_failure_is_raised_as_by_its_flat_methods(bso: BatchSizeOptimizer) -> None:
    noted: list[tuple[object, ...]] = []
    callback = OptimizerCallback(bso)
    with pytest.raises(TrainFailed, match="batch size 64 failed") as raised:
        train(CallbackSet([callback, Recorder("checkpoint", noted)]), callback)

    assert raised.value.exit_code == RELAUNCH
    assert len([one for one in noted if one[1] == "on_evaluate"]) == 5, "the last model is saved, too"


def test_with_the_optimizer_itself_an_early_end_is_a_failure_too(bso: BatchSizeOptimizer) -> None:
    callback = OptimizerCallback(bso)
    with pytest.raises(TrainFailed, match="before it reached the target"):
        train(callback, callback, epochs=2)


def test_a_batch_size_that_was_asked_for_before_is_the_one_to_train_with(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    asked = bso.get_batch_size()
    callback = OptimizerCallback(bso)
    train(callback, callback, metric=0.95)

    assert callback.trial.batch_size == asked
    assert len(optimizer.trials()) == 1


def test_the_power_limit_is_driven_by_the_steps_of_each_epoch(bso: BatchSizeOptimizer) -> None:
    power_limit = PowerLimit()
    trials = bso.trials()
    callback = OptimizerCallback(next(trials), power_limit=power_limit)
    train(callback, callback, epochs=2)

    epoch = ["epoch (", "step (", ") step", "step (", ") step", ") epoch"]
    assert power_limit.noted == [*epoch, *epoch]


def test_an_evaluation_before_the_training_is_an_error_that_says_what_comes_first(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    callback = OptimizerCallback(bso)
    with pytest.raises(WrongOrder, match="on_train_begin"):
        callback.on_evaluate(0.5)

    assert not optimizer.commands(ReportEpoch)


def test_something_else_than_an_optimizer_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"needs the BatchSizeOptimizer, or a trial of its trials\(\), got int"):
        OptimizerCallback(64)  # type: ignore[arg-type]


def test_the_optimizer_stands_for_the_trial_that_the_loop_is_at(bso: BatchSizeOptimizer) -> None:
    outcomes = []
    for trial in bso.trials():
        with trial:
            callback = OptimizerCallback(bso)
            train(callback, callback, metric=0.1 if trial.attempt == 1 else 0.95)
            assert callback.trial == trial
        outcomes.append(trial.outcome)

    assert outcomes == [Outcome.NOT_CONVERGED, Outcome.CONVERGED]
    assert not bso.is_looping
