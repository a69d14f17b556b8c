"""Knowledge of the curve policy, made up: what runs of each batch size are to have shown."""

import math
from collections.abc import Mapping

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


def costing(prices: Mapping[int, float] | None = None) -> EpochCostKnowledge:
    """An epoch of each is known to cost so much [J]; of all, 1 J, if nothing is said."""
    known = dict.fromkeys(SIZES, 1.0) if prices is None else prices
    records = {size: EpochCostRecord(value=math.log(price), variance=1e-6, seen_at=1) for size, price in known.items()}
    return EpochCostKnowledge(records=records, observations=1)
