"""Callbacks for training loops of one's own, with the names of Zeus' hooks: either's fit into the other's sets.

callback = OptimizerCallback(trial, power_limit=power_limit)
callbacks = CallbackSet([callback, another])
callbacks.on_train_begin()
while not callback.training_finished:
    callbacks.on_epoch_begin()
    for batch in loader:
        callbacks.on_step_begin()
        ...
        callbacks.on_step_end()
    callbacks.on_epoch_end()
    callbacks.on_evaluate(evaluate(model))
callbacks.on_train_end()
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partialmethod
from typing import Any

from bso_client.errors import WrongOrder
from bso_client.integrations.driven_trial import DrivenTrial
from bso_client.integrations.power_hooks import PowerHooks, PowerLimit
from bso_client.optimizer import BatchSizeOptimizer
from bso_client.trial import Trial

logger = logging.getLogger("bso")


class Callback:
    """What a training loop calls as it goes along. Each hook does nothing; override those that you need."""

    def on_train_begin(self) -> None:
        """The training begins."""

    def on_train_end(self) -> None:
        """The training is over."""

    def on_epoch_begin(self) -> None:
        """An epoch begins."""

    def on_epoch_end(self) -> None:
        """An epoch's training steps are over."""

    def on_step_begin(self) -> None:
        """A training step, one update of the weights, begins."""

    def on_step_end(self) -> None:
        """A training step is over."""

    def on_evaluate(self, metric: float) -> None:
        """The model was evaluated."""

    def on_instruction_begin(self, name: str) -> None:
        """An instruction of a pipeline (forward, backward) begins."""

    def on_instruction_end(self, name: str) -> None:
        """An instruction of a pipeline is over."""


class CallbackSet(Callback):
    """Several callbacks as one, in their order. Any object with some of the hooks will do, Zeus' own too.

    All of them are called even if one raises: a checkpoint is still saved. Then the first exception is raised, and
    those after it are logged.
    """

    def __init__(self, callbacks: Iterable[object]) -> None:
        self.callbacks = list(callbacks)


def _call_all(callbacks: CallbackSet, hook: str, *arguments: Any, **named: Any) -> None:
    first: Exception | None = None
    for callback in callbacks.callbacks:
        method = getattr(callback, hook, None)
        if method is None:
            continue
        try:
            method(*arguments, **named)
        except Exception as error:
            if first is not None:
                logger.exception("%s failed in %r, too", hook, callback, extra={"action": "callback_failed"})
            first = first or error
    if first is not None:
        raise first


for _hook in [name for name in vars(Callback) if name.startswith("on_")]:
    setattr(CallbackSet, _hook, partialmethod(_call_all, _hook))


class OptimizerCallback(Callback):
    """Reports a training to the optimizer, says when to stop, and drives a power limit optimizer.

    With a ``trial`` of ``bso.trials()`` nothing is raised about its failure: ask ``training_finished``. With a
    BatchSizeOptimizer, on_evaluate and on_train_end raise TrainFailed as its flat methods do. ``power_limit`` is a
    PowerLimitOptimizer; what it raises is logged, and the training goes on.

    Every hook of the training has to be called, in the order above; pipeline instructions are not looked at. Raises
    WrongOrder where on_evaluate comes before on_train_begin.
    """

    def __init__(self, optimizer: BatchSizeOptimizer | Trial, *, power_limit: PowerLimit | None = None) -> None:
        self._training = DrivenTrial(optimizer, asked_by="OptimizerCallback")
        self._power = PowerHooks(power_limit)

    @property
    def trial(self) -> Trial:
        """The trial that is trained: its batch_size is the one to use."""
        return self._training.trial

    @property
    def training_finished(self) -> bool:
        """Whether to stop training: the target is reached, or the batch size has failed."""
        return self.trial.finished

    def on_train_begin(self) -> None:
        """Begin to measure."""
        self._training.begin()

    def on_step_begin(self) -> None:
        """Forward it to the power limit optimizer."""
        self._power.step_begins()

    def on_step_end(self) -> None:
        """Forward it to the power limit optimizer."""
        self._power.step_ends()

    def on_epoch_end(self) -> None:
        """Forward it to the power limit optimizer."""
        self._power.row_ends()

    def on_evaluate(self, metric: float) -> None:
        """Report the evaluation; the epochs count from one to the next."""
        self._power.row_ends()
        if not self.trial.has_begun:
            raise WrongOrder("on_evaluate came before on_train_begin: call all hooks of the training, that one first")
        self._training.report(metric)
        self._raise_failure()

    def on_train_end(self) -> None:
        """End the trial: without convergence it has failed."""
        self._power.row_ends()
        self._training.end()
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure = self.trial.failure
        if failure is not None and self._training.is_flat:
            raise failure
