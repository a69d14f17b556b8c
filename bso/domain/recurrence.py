"""A recurrence: one occasion on which the job must yield a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """An open recurrence. It ends with a converged trial, when its last attempt has failed, or when it is abandoned.

    ``aborts`` counts its trials that failed (interrupted and cancelled ones have not), ``failed`` are their batch
    sizes. ``out_of_memory_from`` gives, by key of the hardware kind, the smallest batch size that ran out of memory.
    """

    recurrence_id: str
    recurrence_number: int
    aborts: int = 0
    failed: frozenset[int] = frozenset()
    out_of_memory_from: Mapping[str, int] = field(default_factory=dict)

    def excludes(self, batch_size: int, hardware_key: str) -> bool:
        """Whether the batch size failed in this recurrence, or must be expected to run out of memory."""
        return batch_size in self.failed or not self.may_fit(batch_size, hardware_key)

    def may_fit(self, batch_size: int, hardware_key: str) -> bool:
        """Whether neither the batch size nor a smaller one ran out of memory in this recurrence."""
        ceiling = self.out_of_memory_from.get(hardware_key)
        return ceiling is None or batch_size < ceiling
