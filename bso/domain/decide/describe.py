"""A job as people want to see it."""

from __future__ import annotations

from collections.abc import Iterator

from bso.domain.attention import attention_in_words
from bso.domain.hardware import EnergyMethod
from bso.domain.job import Job, JobVersion
from bso.domain.knowledge import (
    INTERRUPTIONS_BEFORE_REST,
    Knowledge,
    costs_of,
    feasible,
    reference_of,
    too_large_from,
)
from bso.domain.policies import policy_named
from bso.domain.policy import ArmStatus, Expectation, Outlook, Policy
from bso.domain.replies import (
    ActiveTrialDescription,
    ArmDescription,
    JobDescription,
    KindDescription,
    VersionDescription,
)
from bso.domain.savings import saved_by_month
from bso.domain.sentences import described

_MOST_VERSIONS = 20


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
        kinds=tuple(_kinds(job)),
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
        grants=job.grants,
        hardware=job.hardware,
        saved=saved_by_month(job.ledger),
        versions=tuple(_versions(job)) if len(job.versions) > 1 else (),
    )


def _versions(job: Job) -> Iterator[VersionDescription]:
    for number in sorted(job.versions, reverse=True)[:_MOST_VERSIONS]:
        spec = job.versions[number].spec
        name = f"{spec.version}: " if spec.version else ""
        yield VersionDescription(version_number=number, specification=f"{name}{described(spec)}, policy {spec.policy}")


def _kinds(job: Job) -> Iterator[KindDescription]:
    """The hardware kinds on which anything has run, in order of their keys."""
    version = job.version
    policy = policy_named(version.spec.policy)
    for key in sorted(version.knowledge):
        outlook = policy.outlook(version, version.knowledge[key])
        if _has_run(job, version.knowledge[key], outlook):
            yield _kind(job, policy, version.knowledge[key], outlook)


def _has_run(job: Job, knowledge: Knowledge, outlook: Outlook) -> bool:
    """Whether anything has run on a hardware kind; else all that is known of it is inherited."""
    key = knowledge.hardware.key
    if knowledge.arms or not knowledge.is_inherited:
        return True
    if any(trial.hardware.key == key for trial in job.active_trials()):
        return True
    return bool(outlook.expected)


def _kind(job: Job, policy: Policy, knowledge: Knowledge, outlook: Outlook) -> KindDescription:
    version, spec = job.version, job.spec
    running = job.running_on(version.version_number, knowledge.hardware)
    known = sorted(set(spec.batch_sizes) | set(knowledge.arms))
    stage = policy.stage(version, knowledge)
    best = outlook.best_batch_size
    return KindDescription(
        hardware=knowledge.hardware.describe(),
        hardware_key=knowledge.hardware.key,
        stage=None if stage is None else stage.name,
        round_number=None if stage is None else stage.round_number,
        reference=reference_of(knowledge, spec, policy.excluded(knowledge)),
        about_costs=policy.about_costs,
        best_batch_size=best,
        needs_attention=knowledge.needs_attention,
        attention=attention_in_words(spec, knowledge) if knowledge.needs_attention else "",
        change_points=knowledge.change_points,
        confidence=None if best is None else policy.confidence(version, knowledge, best),
        arms=tuple(
            _arm(policy, version, knowledge, size, outlook.expected.get(size), is_running=size in running)
            for size in known
        ),
    )


def _arm(
    policy: Policy,
    version: JobVersion,
    knowledge: Knowledge,
    batch_size: int,
    expected: Expectation | None,
    *,
    is_running: bool,
) -> ArmDescription:
    standing = _standing(policy, version, knowledge, batch_size, is_running=is_running)
    costs = costs_of(knowledge, version.spec, batch_size)
    return ArmDescription(
        batch_size=batch_size,
        status=standing.status,
        trials_with_cost=costs.count,
        convergences=knowledge.arm(batch_size).convergences,
        mean_cost=costs.mean if costs.count else None,
        posterior_mean=None if expected is None else expected.cost,
        posterior_std=None if expected is None else expected.deviation,
        note=standing.note,
    )


def _standing(
    policy: Policy, version: JobVersion, knowledge: Knowledge, batch_size: int, *, is_running: bool
) -> ArmStatus:
    """Where a batch size stands: what no policy can change, and then what the policy says."""
    arm = knowledge.arm(batch_size)
    if batch_size not in version.spec.batch_sizes:
        return ArmStatus(status="removed", note="no longer among the job's batch sizes")
    if batch_size not in feasible(knowledge, version.spec):
        if arm.exceeds_wall_time:
            return ArmStatus(status="infeasible", note="ended from outside at the same time again and again")
        return ArmStatus(status="infeasible", note=f"out of memory from batch size {too_large_from(knowledge)} on")
    if arm.is_resting and batch_size not in policy.excluded(knowledge):
        rest = f"interrupted {INTERRUPTIONS_BEFORE_REST} times in a row: until another trial has ended"
        return ArmStatus(status="resting", note=rest)
    return policy.standing(version, knowledge, batch_size, is_running=is_running)
