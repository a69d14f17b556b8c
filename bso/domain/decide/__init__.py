"""Deciding: a command and the job's state give events and a reply. Pure; the same in every shell around it."""

from __future__ import annotations

from datetime import datetime
from types import MappingProxyType

from bso.domain.commands import (
    TRIAL_COMMANDS,
    AllowBatchSize,
    BeginTrial,
    Command,
    DeleteJob,
    DescribeJob,
    ExpireLease,
    FinishTrial,
    RegisterJob,
    RenewLease,
    ReportEpoch,
    ReportPowerProfile,
    Request,
)
from bso.domain.decide.begin import begin_trial
from bso.domain.decide.decision import Context, Decision, PowerProfiles, Rules, refused, unchanged
from bso.domain.decide.describe import describe_job
from bso.domain.decide.ending import finish_trial
from bso.domain.decide.leases import expire_lease, renew_lease
from bso.domain.decide.operations import allow_batch_size, delete_job, report_power_profile
from bso.domain.decide.registration import register_job
from bso.domain.decide.report import needs_earlier_report, report_epoch
from bso.domain.hardware import HardwareKind
from bso.domain.job import Job
from bso.domain.trial import EpochReport, Trial

__all__ = [
    "Decision",
    "PowerProfiles",
    "Rules",
    "decide",
    "describe_job",
    "job_like",
    "needs_earlier_report",
    "needs_profiles_of",
    "trial_asked_for",
]

_NO_PROFILES: PowerProfiles = MappingProxyType({})


def decide(
    job: Job | None,
    request: Request,
    *,
    now: datetime,
    rules: Rules,
    earlier: EpochReport | None = None,
    power_profiles: PowerProfiles = _NO_PROFILES,
    like: Job | None = None,
) -> Decision:
    """What follows from a command. Bad input is refused with a Problem; nothing is raised for it.

    ``job`` None: it is not registered. ``now`` is the database's clock. ``earlier`` is what the log holds for
    exactly the reported epoch, needed where needs_earlier_report says so; ``power_profiles`` what is known of the job
    on the hardware kind that needs_profiles_of names; ``like`` is the job that job_like names.
    """
    job = Job(job_id=request.job_id) if job is None else job
    context = Context(
        command_id=request.command_id,
        user=request.user,
        now=now,
        rules=rules,
        power_profiles=power_profiles,
        like=like,
    )
    command = request.command
    if isinstance(command, RegisterJob):
        return register_job(job, command, context)
    if isinstance(command, TRIAL_COMMANDS):
        return _on_trial(job, command, context, earlier)
    if not job.is_registered:
        return _unknown_job(job, command)
    return _on_job(job, command, context)


def trial_asked_for(command: Command) -> int | None:
    """The number of the trial that must be loaded to decide a command, even if it has ended."""
    return command.trial_number if isinstance(command, TRIAL_COMMANDS) else None


def needs_profiles_of(job: Job, command: Command) -> HardwareKind | None:
    """The hardware kind whose power profiles must be loaded to decide a command; None: it needs none."""
    if not job.has_power_profiles:
        return None
    if isinstance(command, BeginTrial):
        return command.hardware
    if isinstance(command, RenewLease) and command.is_resumption and command.trial_number in job.trials:
        return job.trials[command.trial_number].hardware
    return None


def job_like(command: Command) -> str | None:
    """The other job that must be loaded to decide a command: the one that a new version inherits from."""
    return command.like if isinstance(command, RegisterJob) else None


def _on_job(job: Job, command: Command, context: Context) -> Decision:
    match command:
        case BeginTrial():
            return begin_trial(job, command, context)
        case ReportPowerProfile():
            return report_power_profile(job, command)
        case AllowBatchSize():
            return allow_batch_size(job, command, context)
        case DeleteJob():
            return delete_job(job, context)
        case DescribeJob():
            return unchanged(job, describe_job(job))
        case _:
            raise TypeError(f"not a command: {command!r}")


def _on_trial(
    job: Job,
    command: ReportEpoch | FinishTrial | RenewLease | ExpireLease,
    context: Context,
    earlier: EpochReport | None,
) -> Decision:
    trial = job.trials.get(command.trial_number)
    if trial is None:
        return _unknown_trial(job, command.trial_number)
    if trial.trial_id != command.trial_id:
        detail = f"trial {trial.trial_number} of job {job.job_id} has another trial_id than {command.trial_id[:60]!r}"
        return refused(job, "wrong_trial_id", "The trial_id does not belong to the trial", detail)
    if trial.version_number not in job.versions:
        return _forgotten(job, trial)
    match command:
        case ReportEpoch():
            return report_epoch(job, trial, command, context, earlier)
        case FinishTrial():
            return finish_trial(job, trial, command, context)
        case RenewLease():
            return renew_lease(job, trial, command, context)
        case ExpireLease():
            return expire_lease(job, trial, command, context)


def _unknown_job(job: Job, command: Command) -> Decision:
    was = "was deleted" if job.is_deleted else "is not registered"
    advice = ": register it first" if isinstance(command, BeginTrial | ReportPowerProfile) else ""
    return refused(job, "unknown_job", "The job is unknown", f"job {job.job_id} {was}{advice}")


def _unknown_trial(job: Job, number: int) -> Decision:
    detail = f"job {job.job_id} has the trials 1 to {job.last_trial_number}, got {number}"
    if not job.last_trial_number:
        detail = f"job {job.job_id} has no trials, got {number}: register the job and begin a trial first"
    return refused(job, "unknown_trial", "The trial is unknown", detail)


def _forgotten(job: Job, trial: Trial) -> Decision:
    detail = f"trial {trial.trial_number} belongs to a time before job {job.job_id} was deleted: begin another one"
    return refused(job, "trial_ended", "The trial has ended", detail)
