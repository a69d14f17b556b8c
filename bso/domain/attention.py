"""A job that needs attention: one recurrence after the other has ended without a model."""

from __future__ import annotations

import math

from bso.domain.events import AttentionNeeded, Event
from bso.domain.hardware import HardwareKind
from bso.domain.job import Job, JobVersion, Recurrence, available
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import Knowledge, costs_of, nearest
from bso.domain.policies import policy_named
from bso.domain.policy import Choice
from bso.domain.trial import Trial

RECURRENCES_BEFORE_ATTENTION = 3
"""In a row, without a model. From then on a recurrence is one training, until one reaches the target."""

_WHO = "the job's owner, or an operator,"


def attention_needed(job: Job, trial: Trial) -> tuple[Event, ...]:
    """The notice after a recurrence that ended without a model, from the third in a row on; else nothing."""
    knowledge = job.knowledge_of(trial)
    if knowledge.recurrences_without_model < RECURRENCES_BEFORE_ATTENTION and not knowledge.needs_attention:
        return ()
    return (
        AttentionNeeded(
            version_number=trial.version_number,
            hardware_key=trial.hardware.key,
            reason=attention_in_words(job.spec_of(trial), knowledge),
        ),
    )


def attention_in_words(spec: JobSpec, knowledge: Knowledge) -> str:
    """Why a job needs attention, what can be done, and by whom: who trains a job may have no right to change it."""
    tried = knowledge.arms.values()
    if tried and all(arm.out_of_memories and not arm.not_converged_in_a_row for arm in tried):
        return (
            f"{_without_model(knowledge)}, since no batch size fits in memory: {_WHO} can add smaller ones, or allow "
            "these again once they fit (`bso jobs allow JOB BATCH_SIZE`)"
        )
    direction = "at least" if spec.higher_is_better_metric else "at most"
    return (
        f"{_without_model(knowledge)}: no training reached a metric of {direction} {spec.target_metric:g} within "
        f"max_epochs ({spec.max_epochs}). Check higher_is_better_metric ({spec.higher_is_better_metric}) and the "
        f"training itself; {_WHO} can set an easier target_metric, or raise max_epochs"
    )


def choose_with_attention(version: JobVersion, recurrence: Recurrence, hardware: HardwareKind) -> Choice:
    """The default or a batch size that has converged before, or, where none has, one that was never tried: in turn.

    So a target that can be reached is found, whichever of them reaches it.
    """
    spec, knowledge = version.spec, version.knowledge_on(hardware)
    offered = available(knowledge, spec, recurrence)
    default = nearest(spec.default_batch_size, offered)
    policy = policy_named(spec.policy)
    converged = {size for size in offered if policy.has_converged(version, knowledge, size)}
    others = converged or {size for size in offered if _is_untried(knowledge, size)}

    def turn(size: int) -> tuple[int, float, float]:
        costs = costs_of(knowledge, spec, size)
        distance = abs(math.log(size / spec.default_batch_size))
        return knowledge.arm(size).not_converged_in_a_row, costs.mean if costs.count else math.inf, distance

    size = min(sorted({default, *others}), key=turn)
    what = "has converged before" if converged else "was never tried"
    if size not in others:
        what = "is nearest to the default"
    if size == spec.default_batch_size:
        what = "is the default"
    return Choice(batch_size=size, reason=f"{_without_model(knowledge)}; {size} {what}")


def _without_model(knowledge: Knowledge) -> str:
    return f"{knowledge.recurrences_without_model} recurrences in a row ended without a model"


def _is_untried(knowledge: Knowledge, batch_size: int) -> bool:
    arm = knowledge.arm(batch_size)
    return not (arm.convergences or arm.not_converged_in_a_row or arm.costs.count)
