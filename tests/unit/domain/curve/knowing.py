"""Knowledge of the curve policy, made up: what runs of each batch size are to have shown."""

import math
from collections.abc import Mapping, Sequence

from bso.domain.curve.records import EpochCostKnowledge, EpochCostRecord, EpochKnowledge, EpochRecord, EpochSums
from bso.domain.job_spec import JobSpec

SIZES = (16, 32, 64, 128, 256, 512)
SPEC = JobSpec(batch_sizes=SIZES, default_batch_size=64, target_metric=0.9, max_epochs=300)


def lasting(
    epochs: Mapping[int, float], *, runs: int = 20, noise: float = 0.1, before: EpochKnowledge | None = None
) -> EpochKnowledge:
    """So many runs of each that needed so many epochs on average; ``noise``: standard deviation of ln epochs."""
    earlier = {} if before is None else {size: record.sums for size, record in before.records.items()}
    return EpochKnowledge(
        records={
            size: EpochRecord(
                sums=EpochSums(weight=runs, mean=math.log(epochs[size])) if size in epochs else EpochSums(),
                before=earlier.get(size, EpochSums()),
                squares=noise**2 * (runs - 1) if size in epochs else 0.0,
                converged=runs if size in epochs else 0.0,
                looks=runs if size in epochs else 0,
            )
            for size in sorted({*epochs, *earlier})
        }
    )


def costing(sizes: Sequence[int] = SIZES) -> EpochCostKnowledge:
    """An epoch of each of these is known to cost 1 J."""
    records = {size: EpochCostRecord(value=0.0, variance=1e-6, seen_at=1) for size in sizes}
    return EpochCostKnowledge(records=records, observations=1)
