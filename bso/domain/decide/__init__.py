"""Deciding: a command, a job and a few facts give events and a reply. Pure; the same in every shell around it.

needs(job, command) -> Needs        facts_for(job, command, known) -> Facts
decide(job, command, facts, context) -> Decision
"""

from __future__ import annotations

from bso.domain.commands import (
    AllowBatchSize,
    BeginTrial,
    Command,
    DeleteJob,
    DescribeJob,
    ExpireLease,
    FinishTrial,
    GiveJob,
    GrantJob,
    RegisterJob,
    RenewLease,
    ReportEpoch,
    ReportEpochCosts,
    ReportPowerProfile,
    TrialCommand,
)
from bso.domain.decide.begin import begin_trial
from bso.domain.decide.contract import (
    Context,
    Decision,
    Facts,
    Known,
    Needs,
    PowerProfiles,
    ReportKey,
    Rules,
    facts_for,
    needs,
    refused,
    unchanged,
)
from bso.domain.decide.describe import describe_job
from bso.domain.decide.leases import expire_lease, renew_lease
from bso.domain.decide.operations import allow_batch_size, delete_job, give_job, grant_job, report_power_profile
from bso.domain.decide.permissions import lacking, refusal, refused_registration, withheld
from bso.domain.decide.probes import report_epoch_costs
from bso.domain.decide.registration import register_job
from bso.domain.decide.report import report_epoch
from bso.domain.decide.trial_end import finish_trial
from bso.domain.frozen_values import replace
from bso.domain.job import Job
from bso.domain.replies import Problem
from bso.domain.rights import Right
from bso.domain.trial import Trial

__all__ = [
    "Context",
    "Decision",
    "Facts",
    "Known",
    "Needs",
    "PowerProfiles",
    "ReportKey",
    "Rules",
    "decide",
    "describe_job",
    "facts_for",
    "lacking",
    "needs",
    "withheld",
]


def decide(job: Job, command: Command, facts: Facts, context: Context) -> Decision:
    """What a command changes, and the reply to it. Bad input is refused with a Problem; nothing is raised for it.

    ``job`` comes with its active trials; one without versions is not registered. ``facts`` answer needs(job, command).
    """
    if context.user is not None:
        problem = refusal(job, command, user=context.user, rules=context.rules)
        if problem is not None:
            return unchanged(job, problem)
    if facts.trial is not None:
        job = job.with_trial(facts.trial)
    if isinstance(command, RegisterJob):
        return _registration(job, command, facts, context)
    if isinstance(command, TrialCommand):
        return _on_trial(job, command, facts, context)
    if not job.is_registered:
        return _unknown_job(job, command)
    return _on_job(job, command, facts, context)


def _registration(job: Job, command: RegisterJob, facts: Facts, context: Context) -> Decision:
    """A registration, which changes a job only for those who may operate it, and inherits only what they may read."""
    like = facts.other_job
    if like is not None and lacking(like, Right.READ, user=context.user, rules=context.rules) is not None:
        facts = replace(facts, other_job=None)
    decision = register_job(job, command, facts, context)
    if context.user is None or not job.is_registered:
        return decision
    changes = bool(decision.events)
    problem = refused_registration(job, changes=changes, user=context.user, rules=context.rules)
    return decision if problem is None else unchanged(job, problem)


def _on_job(job: Job, command: Command, facts: Facts, context: Context) -> Decision:
    match command:
        case BeginTrial():
            return begin_trial(job, command, facts, context)
        case ReportPowerProfile():
            return report_power_profile(job, command, facts)
        case AllowBatchSize():
            return allow_batch_size(job, command)
        case DeleteJob():
            return delete_job(job, context)
        case GrantJob():
            return grant_job(job, command)
        case GiveJob():
            return give_job(job, command, facts, context)
        case DescribeJob():
            return unchanged(job, describe_job(job))
        case _:
            raise TypeError(f"not a command: {command!r}")


def _on_trial(
    job: Job,
    command: TrialCommand,
    facts: Facts,
    context: Context,
) -> Decision:
    trial = job.trials.get(command.trial_number)
    if trial is None:
        return _unknown_trial(job, command.trial_number)
    if (problem := _meant_for_another(trial, job, command, context)) is not None:
        return unchanged(job, problem)
    if trial.version_number not in job.versions:
        return _forgotten(job, trial)
    match command:
        case ReportEpoch():
            return report_epoch(job, trial, command, facts, context)
        case FinishTrial():
            return finish_trial(job, trial, command, context)
        case RenewLease():
            return renew_lease(job, trial, command, facts, context)
        case ExpireLease():
            return expire_lease(job, trial, command, context)
        case ReportEpochCosts():
            return report_epoch_costs(job, trial, command, context)


def _meant_for_another(trial: Trial, job: Job, command: TrialCommand, context: Context) -> Problem | None:
    """What shows that a command is about another trial than the one of its number; None: nothing does."""
    if command.trial_id == trial.trial_id:
        return None
    whose = f"trial {trial.trial_number} of job {job.job_id}"
    if command.trial_id or not context.is_from_gateway:
        detail = f"{whose} has another trial_id than {command.trial_id[:60]!r}"
        if not command.trial_id:
            detail += "; only a gateway may leave it out, whose login stands in the workers' BSO_GATEWAYS"
        return Problem(type="wrong_trial_id", title="The trial_id does not belong to the trial", detail=detail)
    size = command.batch_size if isinstance(command, ReportEpoch | FinishTrial) else None
    if size in (None, trial.batch_size):
        return None
    detail = f"{whose} has batch size {trial.batch_size}, got {size}"
    return Problem(type="unknown_trial", title="The trial has another batch size", detail=detail)


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
