"""What is forgotten: costs at a change point, infeasibility when an operator lifts it. Copying, no decisions."""

from __future__ import annotations

from bso.domain.frozen_values import replace
from bso.domain.knowledge import ArmRecord, Knowledge


def after_change_point(knowledge: Knowledge) -> Knowledge:
    """The knowledge after costs have changed: what is known of memory, wall time and interruptions stays."""
    arms = {
        size: ArmRecord(
            interrupted_after_s=arm.interrupted_after_s,
            is_resting=arm.is_resting,
            out_of_memories=arm.out_of_memories,
            exceeds_wall_time=arm.exceeds_wall_time,
        )
        for size, arm in knowledge.arms.items()
    }
    return replace(
        knowledge,
        arms=arms,
        window=(),
        change_points=knowledge.change_points + 1,
    )


def after_allowing(knowledge: Knowledge, batch_size: int) -> Knowledge:
    """The knowledge after an operator has lifted the infeasibility of a batch size.

    Whatever fits proves that smaller ones do, so their memory failures are forgotten too.
    """
    arms = {
        size: replace(arm, out_of_memories=0) if size <= batch_size else arm for size, arm in knowledge.arms.items()
    }
    if batch_size in arms:
        allowed = replace(arms[batch_size], exceeds_wall_time=False, interrupted_after_s=(), is_resting=False)
        arms[batch_size] = allowed
    return replace(knowledge, arms=arms)
