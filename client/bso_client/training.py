"""One training in this process: measure it, check what the user says of it. It talks to nobody."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, SupportsFloat

from bso.domain.commands import PowerMeasurement
from bso.domain.stopping import epochs
from bso.domain.trial import Outcome
from bso_client.distributed.ranks import Alone, Ranks
from bso_client.errors import InvalidReport, TrainFailed, WrongOrder
from bso_client.meter import Consumption
from bso_client.progress import Progress

logger = logging.getLogger("bso")


class TrainingMeter(Protocol):
    """What is needed of the meter of a training; bso_client.meter.Meter is one."""

    @property
    def is_running(self) -> bool:
        """Whether a window is open."""
        ...

    @property
    def consumed(self) -> Consumption:
        """The consumption up to the last closed window."""
        ...

    def start(self) -> None:
        """Open a window; without effect if one is open."""
        ...

    def stop(self) -> Consumption:
        """Close the window, if one is open, and tell the consumption so far."""
        ...


class Training(ABC):
    """What a training has reached and consumed. ``ranks`` are the processes that train together."""

    def __init__(
        self, *, job_id: str, progress: Progress, meter: TrainingMeter, samples_per_epoch: float | None = None
    ) -> None:
        self.progress = progress
        self.is_resumable = False
        self.has_started: bool = False
        self.has_left = False
        self.is_called_off = False
        self.averages_metrics = False
        self.job_id = job_id
        self.ranks: Ranks = Alone()
        self.data_parallel_size = 1
        self.local_batch_size: int = progress.batch_size
        self.meter = meter
        self._samples_per_epoch = samples_per_epoch
        self._pauses = 0
        self._was_told_of_end = False

    def start(self) -> None:
        """Begin to measure."""
        if self.has_started:
            raise WrongOrder(f"{self._name} was begun already: each trial trains once")
        self.has_started = True
        self.meter.start()

    @abstractmethod
    def measure(self, metric: SupportsFloat, *, epoch: float | None = None, samples: float | None = None) -> Any:
        """Close the measuring window, and make what ``report`` takes; None: there is nothing to report."""

    @abstractmethod
    async def report(self, measured: Any, /) -> None:
        """Report an evaluation and heed the verdict."""

    @abstractmethod
    async def report_power_profile(self, measurements: Sequence[PowerMeasurement]) -> None:
        """Keep what was measured under several power limits for the next trial with this batch size."""

    @abstractmethod
    async def leave(self, error: BaseException | None) -> bool:
        """End the trial with its ``with`` block; returns whether the exception is dealt with."""

    @abstractmethod
    async def call_off(self, outcome: Outcome, reason: str) -> None:
        """End the trial, and the loop over trials with it; without effect if it has ended before."""

    @abstractmethod
    async def finish(self, outcome: Outcome, reason: str, *, timeout_s: float | None = None) -> None:
        """Say how the training ended, whatever the other ranks do; without effect if it has ended before."""

    def checked(
        self, metric: SupportsFloat, *, epoch: float | None = None, samples: float | None = None
    ) -> tuple[float, float]:
        """The metric as a number, and the progress in epochs. Raises WrongOrder, InvalidReport."""
        if not self.has_started:
            raise WrongOrder(f"on_evaluate came before the training of {self._name} began: {_HOW_TO_BEGIN}")
        return as_number(metric), self._epoch_of(epoch, samples)

    def mark_profiling(self) -> None:
        """Mark the report now being measured: power limits are profiled meanwhile."""
        self.progress.is_profiling = True

    def consumed_now(self) -> Consumption:
        """Time and energy up to this moment."""
        if not self.meter.is_running:
            return self.meter.consumed
        consumed = self.meter.stop()
        self.meter.start()
        return consumed

    def go_on(self) -> None:
        """Measure again, if the training goes on."""
        if not self.progress.has_ended and not self._pauses:
            self.meter.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what happens inside."""
        self.meter.stop()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if self.has_started and not self.has_left:
                self.go_on()

    def failure(self) -> TrainFailed:
        """The end of a failed trial as an exception."""
        progress = self.progress
        return TrainFailed(
            batch_size=progress.batch_size,
            trial_number=progress.trial_number,
            outcome=progress.outcome or Outcome.NOT_CONVERGED,
            reason=progress.outcome_reason,
            should_retry=progress.should_retry,
        )

    def _heed_end(self, metric: float) -> None:
        if self.progress.has_failed and not self.progress.spec.reached_target(metric):
            raise self.failure()
        if self.progress.has_failed:  # the verdict came late, and the model is good: keep it
            self.progress.outcome, self.progress.should_retry = Outcome.CONVERGED, False
        elif not self._was_told_of_end and self.ranks.rank == 0:
            self._was_told_of_end = True
            logger.warning(
                "%s has ended, further evaluations are not reported: train `while not trial.finished`",
                self._name,
                extra={"action": "evaluation_ignored"},
            )

    def _epoch_of(self, epoch: float | None, samples: float | None) -> float:
        if epoch is not None and samples is not None:
            raise InvalidReport("on_evaluate takes epoch or samples, not both")
        if samples is not None:
            if not self._samples_per_epoch:
                raise InvalidReport("on_evaluate(samples=...) needs BatchSizeOptimizer(..., samples_per_epoch=...)")
            epoch = _number_of("samples", samples) / self._samples_per_epoch
        reached = self.progress.epoch + 1.0 if epoch is None else _number_of("epoch", epoch)
        if not (math.isfinite(reached) and reached > self.progress.epoch):
            raise InvalidReport(
                f"progress must grow from one evaluation to the next: {self.progress.epoch:g} epochs were reported, "
                f"now come {reached:g}; epoch and samples count from the beginning of the training"
            )
        return reached

    def _left_early(self) -> str:
        progress = self.progress
        if progress.metric is None:
            return "the training ended before its first evaluation"
        return (
            f"the training ended before it reached the target {progress.spec.target_metric:g}: "
            f"the metric was {progress.metric:g} after {epochs(progress.epoch)}"
        )

    @property
    def _name(self) -> str:
        number = self.progress.trial_number
        return f"trial {'(not registered yet)' if number is None else number}"


_HOW_TO_BEGIN = "put the training inside `with trial:`, or call on_train_begin() first"


def as_number(metric: SupportsFloat) -> float:
    """A metric as a float, from whatever holds one number, which text does not. Raises InvalidReport."""
    if isinstance(metric, (str, bytes, bytearray)):
        raise InvalidReport(f"a metric is one number, got the text {metric[:80]!r}: convert it with float()")
    try:
        return float(metric)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidReport(f"a metric is one number, got {type(metric).__name__}: {str(metric)[:80]}") from error


def _number_of(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # whatever the user gave
    except (TypeError, ValueError, OverflowError):
        raise InvalidReport(f"{name} must be one number, got {type(value).__name__}: {value!r}") from None
