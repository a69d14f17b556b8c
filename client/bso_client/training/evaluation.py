"""What a training says with ``on_evaluate``, as numbers: its metric, and its progress in epochs."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, SupportsFloat

from bso.domain.progress import MOST_REPORTED, epochs
from bso_client.errors import InvalidReport, WrongOrder
from bso_client.training.state import TrainingState

_MOST_WHOLE = 2**24  # every whole number up to it is a float32


def checked_evaluation(
    state: TrainingState,
    metric: SupportsFloat,
    *,
    epoch: float | None,
    samples: float | None,
    samples_per_epoch: float | None,
) -> tuple[float, float]:
    """The metric as a number, and the progress in epochs. Raises WrongOrder, InvalidReport."""
    if not state.has_started:
        raise WrongOrder(
            f"on_evaluate came before the training of {state.name} began: put the training inside "
            "`with trial:`, or call on_train_begin() first"
        )
    number = _as_meant(_metric_of(metric), target=state.spec.target_metric)
    return number, _epoch_of(state.epoch, epoch, samples, samples_per_epoch)


def _epoch_of(before: float, epoch: float | None, samples: float | None, samples_per_epoch: float | None) -> float:
    if epoch is not None and samples is not None:
        raise InvalidReport("on_evaluate takes epoch or samples, not both")
    if samples is not None:
        if not samples_per_epoch:
            raise InvalidReport("on_evaluate(samples=...) needs BatchSizeOptimizer(..., samples_per_epoch=...)")
        epoch = _number_of("samples", samples) / samples_per_epoch
    reached = before + 1.0 if epoch is None else _number_of("epoch", epoch)
    if not 0.0 < reached <= MOST_REPORTED:
        raise InvalidReport(
            f"progress must be a positive number of epochs of at most {MOST_REPORTED:g}, got {reached:g}; epoch and "
            "samples count what has been trained: epoch is 1 after the first one"
        )
    if reached <= before:
        raise InvalidReport(
            f"progress must grow from one evaluation to the next: it was {epochs(before)}, and is now "
            f"{epochs(reached)}; epoch and samples count from the beginning of the training"
        )
    return reached


def _metric_of(metric: SupportsFloat) -> float:
    """A metric as a float, from whatever holds one number, which text does not. Raises InvalidReport."""
    item = getattr(metric, "item", None)  # of a tensor, or of an array, which float() takes in fewer cases
    try:
        number: Any = item() if callable(item) else metric
        if not isinstance(number, (str, bytes, bytearray)):
            return float(number)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        what = f"{type(metric).__name__}: {str(metric)[:80]}"
        raise InvalidReport(f"a metric is one number, got {what}: {_one_number_of(metric)}") from error
    raise InvalidReport(f"a metric is one number, got the text {number[:80]!r}: convert it with float()")


def _one_number_of(metric: object) -> str:
    """What to do about a metric that is no number."""
    if metric is None:
        return "let the evaluation return its metric"
    if isinstance(metric, Mapping):
        key = next(iter(metric), "acc")
        return f"pass one of its values, such as metrics[{key!r}]"
    return "pass one of its numbers, or their mean; of a tensor or an array with one element, .item()"


def _as_meant(metric: float, *, target: float) -> float:
    """What a float32 was before it was rounded: the target, if that rounds to it, else the shortest decimal that does.

    The float32 of 0.9 is 0.8999999762, less than a target of 0.9. Whole numbers up to 2^24, and
    those that are no float32, stay as they are.
    """
    if metric.is_integer() and abs(metric) <= _MOST_WHOLE:
        return metric
    rounded = _float32(metric)
    if rounded is None or struct.unpack("f", rounded)[0] != metric:
        return metric
    decimals = (float(f"{metric:.{digits}g}") for digits in range(6, 10))
    return next((meant for meant in (target, *decimals) if _float32(meant) == rounded), metric)


def _float32(number: float) -> bytes | None:
    """A number rounded to a float32; None: it is too large."""
    try:
        return struct.pack("f", number)
    except OverflowError:
        return None


def _number_of(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # whatever the user gave
    except (TypeError, ValueError, OverflowError):
        raise InvalidReport(f"{name} must be one number, got {type(value).__name__}: {value!r}") from None
