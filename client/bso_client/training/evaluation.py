"""What a script may say of an evaluation."""

from __future__ import annotations

import math
from typing import SupportsFloat

from bso_client.errors import InvalidReport, WrongOrder
from bso_client.training.state import TrainingState

_HOW_TO_BEGIN = "put the training inside `with trial:`, or call on_train_begin() first"


def checked(
    state: TrainingState,
    metric: SupportsFloat,
    *,
    epoch: float | None,
    samples: float | None,
    samples_per_epoch: float | None,
) -> tuple[float, float]:
    """The metric as a number, and the progress in epochs. Raises WrongOrder, InvalidReport."""
    if not state.has_started:
        raise WrongOrder(f"on_evaluate came before the training of {state.name} began: {_HOW_TO_BEGIN}")
    return as_number(metric), _epoch_of(state.epoch, epoch, samples, samples_per_epoch)


def _epoch_of(before: float, epoch: float | None, samples: float | None, samples_per_epoch: float | None) -> float:
    if epoch is not None and samples is not None:
        raise InvalidReport("on_evaluate takes epoch or samples, not both")
    if samples is not None:
        if not samples_per_epoch:
            raise InvalidReport("on_evaluate(samples=...) needs BatchSizeOptimizer(..., samples_per_epoch=...)")
        epoch = _number_of("samples", samples) / samples_per_epoch
    reached = before + 1.0 if epoch is None else _number_of("epoch", epoch)
    if not (math.isfinite(reached) and reached > before):
        raise InvalidReport(
            f"progress must grow from one evaluation to the next: {before:g} epochs were reported, now come "
            f"{reached:g}; epoch and samples count from the beginning of the training"
        )
    return reached


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
