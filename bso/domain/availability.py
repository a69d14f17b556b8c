"""Which batch sizes a recurrence may run next, whatever the policy."""

from __future__ import annotations

from bso.domain.job import Recurrence
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import Knowledge, feasible


def available(knowledge: Knowledge, spec: JobSpec, recurrence: Recurrence) -> frozenset[int]:
    """The batch sizes that fit, as far as possible without what has failed in the recurrence, or rests; never empty."""
    sizes = fitting(knowledge, spec, recurrence)
    return awake(knowledge, sizes - recurrence.failed or sizes)


def fitting(knowledge: Knowledge, spec: JobSpec, recurrence: Recurrence | None) -> frozenset[int]:
    """The feasible batch sizes that need not run out of memory in a recurrence (None: in any); never empty.

    Where even the smallest one ran out of memory, that one: a larger one fits still less.
    """
    sizes, key = feasible(knowledge, spec), knowledge.hardware.key
    if recurrence is None:
        return sizes
    return frozenset(size for size in sizes if recurrence.may_fit(size, key)) or frozenset({min(sizes)})


def awake(knowledge: Knowledge, batch_sizes: frozenset[int]) -> frozenset[int]:
    """Those of the batch sizes that do not rest after interruptions; all if each of them rests."""
    return frozenset(size for size in batch_sizes if not knowledge.arm(size).is_resting) or batch_sizes
