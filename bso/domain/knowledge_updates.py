"""How knowledge changes: by the end of a trial, a change point, an operator. Copying and adding, no decisions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bso.domain.events import LateResult, TrialEnded
from bso.domain.frozen_values import replace
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import (
    INTERRUPTIONS_BEFORE_REST,
    OUT_OF_MEMORY_FOR_GOOD,
    ArmRecord,
    Knowledge,
    Observation,
    is_of_the_job,
)
from bso.domain.trial import OUT_OF_MEMORY, Outcome, Trial, reason_code

SAME_ELAPSED_TIME = 0.05
_RAISED = re.compile(r"[A-Za-z_]\w*(Error|Exception)\b")
"""How the reason of a training begins that has ended by an exception of its own, and by none that a signal raises."""


def with_end_of_trial(
    knowledge: Knowledge, spec: JobSpec, trial: Trial, ended: TrialEnded | LateResult, *, excluded: frozenset[int]
) -> Knowledge:
    """The knowledge after a trial has ended; ``excluded`` are the batch sizes that the policy offers no more.

    Nothing is learnt of a batch size that the job never had, which a client out of reach may have chosen.
    """
    if ended.outcome is Outcome.CANCELLED:
        return knowledge
    knowledge = replace(
        knowledge,
        arms=_lifted(_awake(knowledge, trial.batch_size), knowledge, set(spec.batch_sizes) - excluded, trial, ended),
        is_inherited=False,
    )
    if ended.outcome is Outcome.CONVERGED:
        knowledge = replace(knowledge, recurrences_without_model=0, needs_attention=False)
    if not is_of_the_job(knowledge, spec, trial.batch_size):
        return knowledge
    arm = _arm_after(knowledge.arm(trial.batch_size), ended)
    return replace(
        knowledge,
        arms={**knowledge.arms, trial.batch_size: arm},
        window=_window_after(knowledge, spec, trial, ended),
    )


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


def without_memory_for(knowledge: Knowledge, batch_sizes: Iterable[int]) -> Knowledge:
    """The knowledge after steps with some batch sizes did not fit: no training need fail to show it."""
    arms = {size: replace(knowledge.arm(size), out_of_memories=OUT_OF_MEMORY_FOR_GOOD) for size in batch_sizes}
    return replace(knowledge, arms={**knowledge.arms, **arms})


def with_memory_limits_of(later: Knowledge, earlier: Knowledge) -> Knowledge:
    """The earlier knowledge, with the batch sizes that do not fit in memory as it was found later."""
    found = {
        size: replace(earlier.arm(size), out_of_memories=arm.out_of_memories)
        for size, arm in later.arms.items()
        if arm.out_of_memories > earlier.arm(size).out_of_memories
    }
    return replace(earlier, arms={**earlier.arms, **found}) if found else earlier


def _arm_after(arm: ArmRecord, ended: TrialEnded | LateResult) -> ArmRecord:
    if ended.outcome is Outcome.INTERRUPTED:
        return _interrupted(arm, 0.0 if _RAISED.match(ended.reason) else ended.time_s)
    has_converged = ended.outcome is Outcome.CONVERGED
    ran_out_of_memory = ended.outcome is Outcome.INFEASIBLE and reason_code(ended.reason) == OUT_OF_MEMORY
    return replace(
        arm,
        costs=arm.costs if ended.learnt_cost is None else arm.costs.add(ended.learnt_cost),
        convergences=arm.convergences + has_converged,
        cheapest_converged=_least(arm.cheapest_converged, ended.learnt_cost if has_converged else None),
        not_converged_in_a_row=_not_converged_in_a_row(arm, ended, ran_out_of_memory=ran_out_of_memory),
        interrupted_after_s=(),
        is_resting=False,
        out_of_memories=arm.out_of_memories + ran_out_of_memory,
    )


def _not_converged_in_a_row(arm: ArmRecord, ended: TrialEnded | LateResult, *, ran_out_of_memory: bool) -> int:
    """Stopped for its cost a trial shows nothing of this, and running out of memory has rules of its own."""
    if ended.outcome is Outcome.CONVERGED:
        return 0
    is_failure_to_converge = ended.outcome in (Outcome.NOT_CONVERGED, Outcome.INFEASIBLE) and not ran_out_of_memory
    return arm.not_converged_in_a_row + is_failure_to_converge


def _interrupted(arm: ArmRecord, elapsed_s: float) -> ArmRecord:
    """One more interruption in a row: after three the batch size rests; always at the same time, it is a limit.

    ``elapsed_s`` is 0 where the training itself raised: an error of its own comes at the same time each night, too.
    """
    elapsed = (*arm.interrupted_after_s, elapsed_s)[-INTERRUPTIONS_BEFORE_REST:]
    is_third = len(elapsed) == INTERRUPTIONS_BEFORE_REST
    middle = sum(elapsed) / len(elapsed)
    is_same_time = middle > 0 and all(abs(one - middle) <= SAME_ELAPSED_TIME * middle for one in elapsed)
    return replace(
        arm,
        interrupted_after_s=elapsed,
        is_resting=is_third,
        exceeds_wall_time=arm.exceeds_wall_time or (is_third and is_same_time),
    )


def _awake(knowledge: Knowledge, ended_batch_size: int) -> dict[int, ArmRecord]:
    """The arms, those that rested until another trial ended being awake again."""
    return {
        size: replace(arm, is_resting=False) if arm.is_resting and size != ended_batch_size else arm
        for size, arm in knowledge.arms.items()
    }


def _lifted(
    arms: dict[int, ArmRecord], knowledge: Knowledge, sampled: set[int], trial: Trial, ended: TrialEnded | LateResult
) -> dict[int, ArmRecord]:
    """The arms, no longer excluded if none of them converged any more and now one does: the cause lay elsewhere."""
    is_news = ended.outcome is Outcome.CONVERGED and trial.batch_size in sampled
    if not is_news or any(knowledge.arm(size).still_converges for size in sampled):
        return arms
    return {size: replace(arm, not_converged_in_a_row=0) for size, arm in arms.items()}


def _window_after(
    knowledge: Knowledge, spec: JobSpec, trial: Trial, ended: TrialEnded | LateResult
) -> tuple[Observation, ...]:
    """The last results that the window spans; interruptions are none, and push nothing out."""
    if not spec.window_size:
        return ()
    if ended.outcome is Outcome.INTERRUPTED:
        return knowledge.window
    seen = Observation(
        batch_size=trial.batch_size, cost=ended.learnt_cost, has_converged=ended.outcome is Outcome.CONVERGED
    )
    return (*knowledge.window, seen)[-spec.observations_kept :]


def _least(first: float | None, second: float | None) -> float | None:
    return min((value for value in (first, second) if value is not None), default=None)
