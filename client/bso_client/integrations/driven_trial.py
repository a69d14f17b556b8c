"""A training that a loader or callbacks begin, report and end for its user."""

from __future__ import annotations

from typing import SupportsFloat

from bso_client.errors import InvalidSetting
from bso_client.optimizer import BatchSizeOptimizer
from bso_client.options import kind_of
from bso_client.trial import Trial


class DrivenTrial:
    """The training of one trial. ``optimizer`` is that trial, or a BatchSizeOptimizer, which is asked for one.

    In a loop over ``bso.trials()`` nothing is raised about a failure: the loop goes on with the next trial. Outside of
    one an optimizer is used like its flat methods: a failure has to end the process. Raises InvalidSetting for anything
    else.
    """

    def __init__(self, optimizer: BatchSizeOptimizer | Trial | None, *, asked_by: str) -> None:
        self._bso: BatchSizeOptimizer | None = None
        if isinstance(optimizer, BatchSizeOptimizer):
            self._bso = None if optimizer.is_looping else optimizer
            self.trial = _next_trial(optimizer)
        elif isinstance(optimizer, Trial):
            self.trial = optimizer
        else:
            raise InvalidSetting(
                f"{asked_by} needs the BatchSizeOptimizer, or a trial of its trials(), got {kind_of(optimizer)}"
            )
        self._ends_it = False

    @property
    def is_flat(self) -> bool:
        """Whether a failure has to end the process."""
        return self._bso is not None

    def begin(self) -> None:
        """Begin to measure, unless a ``with trial:`` around it has done so and will end the trial."""
        if self.trial.has_begun:
            return
        self._ends_it = True
        self.trial.__enter__()

    def report(self, metric: SupportsFloat, *, epoch: float | None = None) -> None:
        """Report an evaluation. Raises TrainFailed only where the training went on after its failure."""
        self.trial.on_evaluate(metric, epoch=epoch)

    def end(self) -> None:
        """End the trial, unless a ``with trial:`` does: without convergence it has failed."""
        if self._ends_it:
            self._ends_it = False
            self.trial.__exit__(None, None, None)

    def exit_if_failed(self) -> None:
        """End the process where a failure has to: with 75 where another batch size is to be tried."""
        failure = self.trial.failure
        if failure is not None and self._bso is not None:
            with self._bso.relaunching():
                raise failure


def _next_trial(bso: BatchSizeOptimizer) -> Trial:
    """The one that a loop is at, or whose batch size was asked for and not trained with yet, else the next one."""
    trial = bso.trial
    if trial is None or (not bso.is_looping and (trial.has_begun or trial.finished)):
        bso.get_batch_size()
    trial = bso.trial
    assert trial is not None
    return trial
