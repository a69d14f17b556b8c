"""The processes that train together, and how they exchange values."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")


class Ranks(Protocol):
    """The processes of one training. ``rank`` counts from 0, ``local_rank`` on this machine; ``size`` is all of them.

    Both exchanges are collective: every rank makes the same ones in the same order. ``about`` names what is exchanged,
    in the words of errors. Values are plain data that pickles. They raise RankLost when a rank does not come within
    the deadline, or died, and RanksOutOfStep, on every rank, when ranks are at different exchanges.
    """

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        ...

    @property
    def size(self) -> int:
        """The number of processes, at least 1."""
        ...

    @property
    def local_rank(self) -> int:
        """The number of this process among those of its machine, from 0."""
        ...

    def broadcast(self, value: T, *, about: str = "broadcast") -> T:
        """The value of rank 0, on all ranks."""
        ...

    def gather(self, value: T, *, about: str = "gather") -> list[T]:
        """The values of all ranks, by rank, on all ranks."""
        ...


@dataclass(frozen=True, slots=True)
class Alone:
    """A training of one process: every exchange returns at once."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    def broadcast(self, value: T, *, about: str = "broadcast") -> T:
        """The value itself."""
        return value

    def gather(self, value: T, *, about: str = "gather") -> list[T]:
        """The value itself, alone."""
        return [value]


def is_initialized() -> bool:
    """Whether torch.distributed is in use in this process."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())
