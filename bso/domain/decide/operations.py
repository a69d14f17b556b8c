"""What operators and tools ask for: power profiles, lifting infeasibility, deletion, rights."""

from __future__ import annotations

from dataclasses import astuple

from bso.domain.commands import AllowBatchSize, GiveJob, GrantJob, ReportPowerProfile
from bso.domain.decide.contract import Context, Decision, Facts, one_job_too_many, refused, refused_for, unchanged
from bso.domain.events import BatchSizeAllowed, Event, JobDeleted, JobGiven, JobGranted, PowerProfiled, TrialEnded
from bso.domain.evolve import apply
from bso.domain.hardware import hardware_problems
from bso.domain.identifiers import login_problem
from bso.domain.job import Job
from bso.domain.job_spec import MAX_BATCH_SIZE
from bso.domain.progress import MOST_REPORTED
from bso.domain.replies import AllowedAgain, Deleted, PowerProfileRecorded, RightsRecorded
from bso.domain.trial import Outcome, Trial

MAX_MEASUREMENTS = 1000
MOST_PROFILED = 200
"""Batch sizes that have a power profile on one hardware kind: a trial that begins there reads all of them."""
MOST_GRANTS = 100


def report_power_profile(job: Job, command: ReportPowerProfile, facts: Facts) -> Decision:
    """Record power and throughput under several power limits."""
    problems = hardware_problems(command.hardware)
    if not 1 <= command.batch_size <= MAX_BATCH_SIZE:
        problems["batch_size"] = f"must be from 1 to {MAX_BATCH_SIZE}, got {command.batch_size}"
    if not 1 <= len(command.measurements) <= MAX_MEASUREMENTS:
        problems["measurements"] = f"must be 1 to {MAX_MEASUREMENTS}, got {len(command.measurements)}"
    for index, measurement in enumerate(command.measurements):
        if not all(0 < value <= MOST_REPORTED for value in astuple(measurement)):
            problems[f"measurements.{index}"] = (
                f"must hold positive numbers of at most {MOST_REPORTED:g}, got {measurement}"
            )
    if problems:
        return refused_for(job, "invalid_power_profile", "The power profile is not valid", problems)
    profiled = {batch_size for batch_size, _ in facts.power_profiles}
    if command.batch_size not in profiled and len(profiled) >= MOST_PROFILED:
        detail = (
            f"job {job.job_id} has power profiles of {len(profiled)} batch sizes on this hardware kind, and may have "
            f"{MOST_PROFILED}, got one of batch size {command.batch_size}: register another job, or delete this one"
        )
        return refused(job, "too_many_power_profiles", "The job has too many power profiles", detail)
    event = PowerProfiled(batch_size=command.batch_size, hardware=command.hardware, measurements=command.measurements)
    return Decision(job=apply(job, [event]), events=(event,), reply=PowerProfileRecorded())


def allow_batch_size(job: Job, command: AllowBatchSize) -> Decision:
    """Lift the infeasibility of a batch size."""
    kinds = tuple(sorted(job.version.knowledge))
    if command.hardware_key is not None and command.hardware_key not in kinds:
        detail = f"job {job.job_id} knows the hardware kinds {', '.join(kinds) or '(none)'}, got {command.hardware_key}"
        return refused(job, "unknown_hardware", "The job never ran on this hardware kind", detail)
    if command.batch_size not in job.spec.batch_sizes:
        sizes = ", ".join(map(str, job.spec.batch_sizes))
        detail = f"the batch sizes of job {job.job_id} are {sizes}, got {command.batch_size}"
        return refused(job, "unknown_batch_size", "The job does not have this batch size", detail)
    keys = kinds if command.hardware_key is None else (command.hardware_key,)
    event = BatchSizeAllowed(batch_size=command.batch_size, hardware_keys=keys)
    return Decision(job=apply(job, [event]), events=(event,), reply=AllowedAgain(hardware_keys=keys))


def delete_job(job: Job, context: Context) -> Decision:
    """Leave a tombstone and cancel what is active: in this order, so that no policy need be there to learn from it."""
    active = job.active_trials()
    events: tuple[Event, ...] = (JobDeleted(), *(_cancelled(trial, context) for trial in active))
    reply = Deleted(cancelled_trials=tuple(trial.trial_number for trial in active))
    return Decision(job=apply(job, events), events=events, reply=reply)


def grant_job(job: Job, command: GrantJob) -> Decision:
    """Record what a login may do with a job that it does not own."""
    if (problem := login_problem(command.login)) is not None:
        return refused_for(job, "invalid_login", "The login is not valid", {"login": problem})
    if command.login == job.owner:
        detail = f"{command.login} owns job {job.job_id}, and may do everything with it"
        return refused(job, "invalid_login", "The login owns the job", detail)
    if command.login not in job.grants and len(job.grants) >= MOST_GRANTS:
        granted = f"job {job.job_id} is granted to {len(job.grants)} logins, and may be to {MOST_GRANTS}"
        detail = f"{granted}, got another one, {command.login}: take one away, or use a team"
        return refused(job, "too_many_grants", "The job is granted to too many logins", detail)
    if job.grants.get(command.login) is command.right:
        return unchanged(job, RightsRecorded(owner=job.owner, grants=job.grants))
    return _with_rights(job, JobGranted(login=command.login, right=command.right))


def give_job(job: Job, command: GiveJob, facts: Facts, context: Context) -> Decision:
    """Record the job's new owner. What others were granted stays."""
    if (problem := login_problem(command.login)) is not None:
        return refused_for(job, "invalid_login", "The login is not valid", {"login": problem})
    if command.login == job.owner:
        return unchanged(job, RightsRecorded(owner=job.owner, grants=job.grants))
    if context.user not in (None, *context.rules.operators):
        over = one_job_too_many(command.login, facts, context)
        if over is not None:
            return unchanged(job, over)
    return _with_rights(job, JobGiven(owner=command.login))


def _with_rights(job: Job, event: JobGranted | JobGiven) -> Decision:
    after = apply(job, [event])
    return Decision(job=after, events=(event,), reply=RightsRecorded(owner=after.owner, grants=after.grants))


def _cancelled(trial: Trial, context: Context) -> TrialEnded:
    return TrialEnded(
        trial_number=trial.trial_number,
        outcome=Outcome.CANCELLED,
        reason="the job was deleted",
        cost=trial.cost,
        time_s=trial.time_s,
        energy_j=trial.energy_j,
        bound=trial.bound,
        is_over_bound=False,
        is_failure=False,
        learnt_cost=None,
        ended_at=context.now,
    )
