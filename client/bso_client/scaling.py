"""What depends on the batch size: the learning rate, and gradient accumulation where a batch does not fit in memory."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from bso.domain.learning_rate import LearningRate, ScalingRule
from bso_client.errors import InvalidSetting
from bso_client.failures import is_out_of_memory

__all__ = ["Accumulation", "LearningRate", "ScalingRule", "accumulate", "largest_that_fits"]

T = TypeVar("T")

logger = logging.getLogger("bso")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """One update of the weights out of several passes: ``micro_batch_size`` samples at a time, ``steps`` times.

    ``batch_size`` is that of the trial: the samples of one update on all ranks. It is micro_batch_size * steps *
    world_size, exactly, but for shares that are one sample larger on some ranks (``uneven=True``); ``world_size`` is
    the number of ranks that train with different samples. Divide each loss (a mean over its micro batch) by ``steps``
    before backward(). Made by Trial.accumulation(), which raises InvalidSetting where the batch size cannot be made up
    so.
    """

    batch_size: int
    micro_batch_size: int
    steps: int = 1
    world_size: int = 1

    @property
    def local_batch_size(self) -> int:
        """The samples of one update on this rank."""
        return self.micro_batch_size * self.steps

    def is_last(self, step: int) -> bool:
        """Whether the weights are updated after this micro batch, counted from 0 within the epoch.

        At the end of an epoch whose micro batches are no multiple of ``steps`` nothing says so: ``over`` does.
        """
        return (step + 1) % self.steps == 0

    def over(self, micro_batches: Iterable[T]) -> Iterator[tuple[T, bool]]:
        """Each micro batch, and whether the weights are updated after it; after the last one of an epoch they are.

        Reads one micro batch ahead, to know the last one.
        """
        iterator = iter(micro_batches)
        nothing = object()
        current: T | object = next(iterator, nothing)
        step = 0
        while current is not nothing:
            following: T | object = next(iterator, nothing)
            yield current, self.is_last(step) or following is nothing  # type: ignore[misc]  # it is no longer nothing
            current, step = following, step + 1

    def smaller(self) -> Accumulation | None:
        """The same batch size in the next smaller micro batches; None: they are of one sample already.

        Raises InvalidSetting where the ranks have no equal shares.
        """
        if self.micro_batch_size == 1:
            return None
        limit = self.micro_batch_size - 1
        return accumulate(self.batch_size, world_size=self.world_size, max_micro_batch_size=limit)


def accumulate(batch_size: int, *, world_size: int = 1, max_micro_batch_size: int | None = None) -> Accumulation:
    """Divide a batch size into equal shares of ranks, and each share into the fewest equal micro batches that fit.

    Micro batches are equal so that each sample weighs the same: their size is the largest divisor of a rank's share
    that is at most ``max_micro_batch_size``. Where that is less than half of what would fit (a prime share has only the
    divisor 1), a warning says which nearby batch sizes are better. Raises InvalidSetting if the ranks cannot have equal
    shares.
    """
    if batch_size % world_size:
        raise InvalidSetting(
            f"batch size {batch_size} cannot be divided equally among {world_size} ranks, as micro batches and "
            f"trainers need: offer multiples of {world_size} as batch_sizes, for example "
            f"{_near(batch_size, world_size)}"
        )
    local = batch_size // world_size
    if max_micro_batch_size is None:
        return Accumulation(batch_size=batch_size, micro_batch_size=local, world_size=world_size)
    _check_limit(max_micro_batch_size)
    micro = max(size for size in _divisors(local) if size <= max_micro_batch_size)
    if micro * 2 <= min(local, max_micro_batch_size):
        _warn_of_waste(local, micro, limit=max_micro_batch_size, world_size=world_size)
    return Accumulation(batch_size=batch_size, micro_batch_size=micro, steps=local // micro, world_size=world_size)


def largest_that_fits(
    accumulation: Accumulation,
    try_step: Callable[[int], object],
    *,
    agree: Callable[[bool], bool] = lambda fits: fits,
) -> Accumulation:
    """The largest micro batches with which ``try_step(micro_batch_size)`` does not run out of GPU memory.

    ``agree`` returns whether a size fits on every rank, given whether it does on this one. Raises the error of the GPU
    when not even one sample fits. Whatever else ``try_step`` raises goes its way, and leaves the other ranks to their
    deadline.
    """
    tried: Accumulation | None = accumulation
    while tried is not None:
        error = _out_of_memory_in(try_step, tried.micro_batch_size)
        if agree(error is None):
            return tried
        following = tried.smaller()
        if following is None:
            raise error or RuntimeError("another rank runs out of memory with micro batches of one sample")
        logger.info(
            "micro batches of %d samples do not fit in memory: %d are tried",
            tried.micro_batch_size,
            following.micro_batch_size,
            extra={"action": "micro_batch_shrunk", "micro_batch_size": following.micro_batch_size},
        )
        tried = following
    raise AssertionError("unreachable")  # pragma: no cover


def _out_of_memory_in(try_step: Callable[[int], object], micro_batch_size: int) -> Exception | None:
    try:
        try_step(micro_batch_size)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        kept = error.with_traceback(None)  # its frames hold the very tensors that did not fit
    else:
        return None
    _free_gpu_memory()
    return kept


def _free_gpu_memory() -> None:
    """Give back what torch has cached on the GPU, if torch is in use."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_available() and cuda.is_initialized():
        cuda.empty_cache()


def _divisors(number: int) -> Iterator[int]:
    return (size for size in range(1, number + 1) if number % size == 0)


def _check_limit(max_micro_batch_size: object) -> None:
    if isinstance(max_micro_batch_size, bool) or not isinstance(max_micro_batch_size, int) or max_micro_batch_size < 1:
        raise InvalidSetting(
            f"max_micro_batch_size must be a number of samples of 1 or more, got {max_micro_batch_size!r}"
        )


def _warn_of_waste(local: int, micro: int, *, limit: int, world_size: int) -> None:
    better = sorted({local - local % limit, local - local % limit + limit} - {0})
    of_what = f"batch size {local}" if world_size == 1 else f"batch size {local * world_size} ({local} per rank)"
    logger.warning(
        "%s has no divisor between %d and %d: %d micro batches of %d, although %d samples would fit at once; "
        "a batch size of %s would need far fewer",
        of_what,
        micro + 1,
        min(limit, local),
        local // micro,
        micro,
        limit,
        " or ".join(str(size * world_size) for size in better),
        extra={"action": "micro_batches_wasteful", "micro_batch_size": micro},
    )


def _near(batch_size: int, world_size: int) -> str:
    below = batch_size - batch_size % world_size
    return " or ".join(str(size) for size in (below, below + world_size) if size)
