"""A job as people want to see it."""

from __future__ import annotations

from bso.domain.attention import attention_in_words
from bso.domain.decide.decision import POLICIES
from bso.domain.hardware import EnergyMethod
from bso.domain.job import Job, JobVersion
from bso.domain.job_spec import PRUNING_THOMPSON, JobSpec
from bso.domain.knowledge import (
    INTERRUPTIONS_BEFORE_REST,
    Knowledge,
    Stage,
    costs_of,
    feasible,
    reference_of,
    too_large_from,
)
from bso.domain.policy import Expectation
from bso.domain.pruning import next_to_explore
from bso.domain.replies import (
    ActiveTrialDescription,
    ArmDescription,
    JobDescription,
    KindDescription,
)


def describe_job(job: Job) -> JobDescription:
    """The state of a registered job's current version."""
    version = job.version
    return JobDescription(
        job_id=job.job_id,
        owner=job.owner,
        version_number=version.version_number,
        spec=version.spec,
        trials=job.last_trial_number,
        recurrences=job.last_recurrence_number,
        open_recurrences=tuple(sorted(job.recurrences, key=lambda name: job.recurrences[name].recurrence_number)),
        kinds=tuple(
            _kind(job, version, version.knowledge[key])
            for key in sorted(version.knowledge)
            if _has_run(job, version.knowledge[key])
        ),
        active_trials=tuple(
            ActiveTrialDescription(
                trial_number=trial.trial_number,
                recurrence_id=trial.recurrence_id,
                batch_size=trial.batch_size,
                state=trial.state,
                epoch=trial.epoch,
                cost=trial.cost,
                started_at=trial.started_at,
                lease_expires_at=trial.lease_expires_at,
                is_energy_assumed=trial.hardware.energy_method is EnergyMethod.ASSUMED,
            )
            for trial in job.active_trials()
        ),
        learning_rate=version.learning_rate,
    )


def _has_run(job: Job, knowledge: Knowledge) -> bool:
    """Whether anything has run on a hardware kind; else all that is known of it is inherited."""
    key = knowledge.hardware.key
    is_known = bool(knowledge.arms) or knowledge.epoch_costs.is_seen or not knowledge.epoch_costs.is_inherited
    return is_known or any(trial.hardware.key == key for trial in job.active_trials())


def _kind(job: Job, version: JobVersion, knowledge: Knowledge) -> KindDescription:
    spec = version.spec
    running = job.running_on(version.version_number, knowledge.hardware)
    known = sorted(set(spec.batch_sizes) | set(knowledge.arms))
    policy = POLICIES[spec.policy]
    outlook = policy.outlook(version, knowledge)
    best = outlook.best_batch_size
    return KindDescription(
        hardware=knowledge.hardware.describe(),
        hardware_key=knowledge.hardware.key,
        stage=knowledge.stage,
        round_number=knowledge.pruning.round_number,
        reference=reference_of(knowledge, spec),
        best_batch_size=best,
        needs_attention=knowledge.needs_attention,
        attention=attention_in_words(spec, knowledge) if knowledge.needs_attention else "",
        change_points=knowledge.change_points,
        confidence=None if best is None else policy.confidence(version, knowledge, best),
        arms=tuple(
            _arm(knowledge, spec, size, outlook.expected.get(size), is_running=size in running) for size in known
        ),
    )


def _arm(
    knowledge: Knowledge, spec: JobSpec, batch_size: int, expected: Expectation | None, *, is_running: bool
) -> ArmDescription:
    status = _status(knowledge, spec, batch_size, is_running=is_running)
    costs = costs_of(knowledge, spec, batch_size)
    return ArmDescription(
        batch_size=batch_size,
        status=status,
        trials_with_cost=costs.count,
        convergences=knowledge.arm(batch_size).convergences,
        mean_cost=costs.mean if costs.count else None,
        posterior_mean=None if expected is None else expected.cost,
        posterior_std=None if expected is None else expected.deviation,
        note=_note(knowledge, batch_size, status),
    )


def _status(knowledge: Knowledge, spec: JobSpec, batch_size: int, *, is_running: bool) -> str:
    """Where a batch size stands, in one word or two."""
    arm, state = knowledge.arm(batch_size), knowledge.pruning
    if batch_size not in spec.batch_sizes:
        return "removed"
    if batch_size not in feasible(knowledge, spec):
        return "infeasible"
    has_pruning = spec.policy == PRUNING_THOMPSON
    if batch_size in state.pruned and has_pruning:
        return "pruned"
    if arm.is_resting:
        return "resting"
    if knowledge.stage is Stage.MAB or not has_pruning:
        return "arm" if arm.still_converges else "excluded"
    verdict = state.verdicts.get(batch_size)
    if verdict is not None:
        return "survives" if verdict.has_converged else "failed"
    if next_to_explore(state, spec, feasible(knowledge, spec)) != batch_size:
        return "to explore"
    return "exploring" if is_running else "next"


def _note(knowledge: Knowledge, batch_size: int, status: str) -> str:
    """Why a batch size is not offered at present; empty if it is."""
    arm = knowledge.arm(batch_size)
    match status:
        case "removed":
            return "no longer among the job's batch sizes"
        case "infeasible" if arm.exceeds_wall_time:
            return "ended from outside at the same time again and again"
        case "infeasible":
            return f"out of memory from batch size {too_large_from(knowledge)} on"
        case "pruned":
            return "failed while exploring, or beyond one that failed"
        case "resting":
            return f"interrupted {INTERRUPTIONS_BEFORE_REST} times in a row: until another trial has ended"
        case "excluded":
            return f"did not converge in {arm.not_converged_in_a_row} trials in a row"
        case _:
            return ""
