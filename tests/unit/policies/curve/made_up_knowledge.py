"""Knowledge of the curve policy, made up: what runs of each batch size are to have shown."""

import math
from collections.abc import Mapping, Sequence

from bso.domain.job_spec import JobSpec
from bso.policies.curve.cost_records import EpochCostKnowledge, EpochCostRecord
from bso.policies.curve.epoch_records import EpochKnowledge, EpochRecord, RunSums

SIZES = (16, 32, 64, 128, 256, 512)
SPEC = JobSpec(batch_sizes=SIZES, default_batch_size=64, target_metric=0.9, max_epochs=300, policy="curve")


def lasting(
    epochs: Mapping[int, float], *, runs: int = 20, noise: float = 0.1, before: EpochKnowledge | None = None
) -> EpochKnowledge:
    """So many runs of each that needed so many epochs on average; ``noise``: standard deviation of ln epochs."""
    earlier = {} if before is None else {size: record.sums for size, record in before.records.items()}
    return EpochKnowledge(
        records={
            size: EpochRecord(
                sums=RunSums(weight=runs, mean=math.log(epochs[size])) if size in epochs else RunSums(),
                before=earlier.get(size, RunSums()),
                squares=noise**2 * (runs - 1) if size in epochs else 0.0,
                converged=runs if size in epochs else 0.0,
                looks=runs if size in epochs else 0,
            )
            for size in sorted({*epochs, *earlier})
        }
    )


def costing(sizes: Sequence[int] = SIZES) -> EpochCostKnowledge:
    """An epoch of each of these is known to cost 1 J, in all runs nearly the same."""
    records = {size: EpochCostRecord(sums=RunSums(weight=400.0)) for size in sizes}
    return EpochCostKnowledge(records=records, squares=100 * 0.02**2, freedom=100.0, runs=400)
