"""How the samples of a batch are divided among the ranks of a data-parallel training. Rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bso_client.errors import InvalidSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A rank's part of every batch: it is the one at ``position`` of ``size`` ranks with different samples.

    ``is_uneven`` allows batch sizes that cannot be divided equally: the first ranks then get one sample more.
    """

    position: int = 0
    size: int = 1
    is_uneven: bool = False

    def of(self, batch_size: int) -> int:
        """The samples of this rank. Raises InvalidSpec."""
        self.check([batch_size])
        return batch_size // self.size + (self.position < batch_size % self.size)

    def before(self, batch_size: int) -> int:
        """The samples of the ranks before this one."""
        return self.position * (batch_size // self.size) + min(self.position, batch_size % self.size)

    def check(self, batch_sizes: Sequence[int]) -> None:
        """Raise InvalidSpec naming the batch sizes that cannot be divided so."""
        if self.is_uneven:
            wrong, words, way_out = [size for size in batch_sizes if size < self.size], "at least", ""
        else:
            wrong, words = [size for size in batch_sizes if size % self.size], "multiples of"
            way_out = (
                ", or pass uneven=True to the optimizer: the first ranks then get one sample more, and each rank loads "
                "with a ProportionalSampler (bso_client.integrations.torch; TrainingLoader makes one)"
            )
        if wrong:
            shown = ", ".join(map(str, wrong))
            problem = (
                f"are divided among {self.size} data-parallel processes: expected {words} {self.size}, got {shown}; "
                f"leave those out{way_out}"
            )
            raise InvalidSpec({"batch_sizes": problem})
