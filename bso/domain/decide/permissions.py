"""Who may send which command: owners, their teams, those to whom they grant a right, and operators."""

from __future__ import annotations

import shlex

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
)
from bso.domain.decide.contract import Rules
from bso.domain.frozen_values import replace
from bso.domain.job import Job
from bso.domain.replies import (
    AllowedAgain,
    Deleted,
    JobDescription,
    Problem,
    Registered,
    Reply,
    RightsRecorded,
)
from bso.domain.rights import Right, is_granted, owns, team_of

NEEDED: dict[type[Command], Right | None] = {
    DescribeJob: Right.READ,
    RegisterJob: Right.TRAIN,
    BeginTrial: Right.TRAIN,
    ReportEpoch: Right.TRAIN,
    FinishTrial: Right.TRAIN,
    RenewLease: Right.TRAIN,
    ExpireLease: Right.TRAIN,
    ReportPowerProfile: Right.TRAIN,
    ReportEpochCosts: Right.TRAIN,
    AllowBatchSize: Right.OPERATE,
    DeleteJob: Right.OPERATE,
    GrantJob: None,
    GiveJob: None,
}
"""The right that a command needs; None: only the owner, its team and operators may send it."""

RESPECIFY = Right.OPERATE
"""The right that a registration needs which changes a job."""

_SEEN: dict[type[Reply], Right | None] = {
    Registered: Right.TRAIN,
    AllowedAgain: Right.OPERATE,
    Deleted: Right.OPERATE,
    JobDescription: Right.READ,
}
_HARMLESS = (RightsRecorded, Problem)
"""Who has given a job away may ask again whether that has worked; refusals hold nothing of a job."""


def refusal(job: Job, command: Command, *, user: str | None, rules: Rules) -> Problem | None:
    """Why a login may not send a command; None: it may, or there is no such job.

    The name of a deleted job stays its owner's, with its history, until it is purged.
    """
    if not isinstance(command, RegisterJob):
        if not job.versions and not job.is_deleted:
            return None
        return lacking(job, NEEDED[type(command)], user=user, rules=rules)
    if job.is_deleted:
        return lacking(job, None, user=user, rules=rules)
    return None if job.is_registered else _named_after_others(job, user=user, rules=rules)


def refused_registration(job: Job, *, changes: bool, user: str | None, rules: Rules) -> Problem | None:
    """Why a login may not register a job that is registered, with other values (``changes``) or not; None: it may."""
    problem = lacking(job, RESPECIFY if changes else NEEDED[RegisterJob], user=user, rules=rules)
    if problem is None:
        return None
    return replace(problem, detail=f"{problem.detail}; for a job of your own, choose another job_id")


def withheld(job: Job, reply: type[Reply], *, user: str | None, rules: Rules) -> Problem | None:
    """Why a login may not see the recorded reply to a command, whatever it has sent to ask for it; None: it may."""
    if issubclass(reply, _HARMLESS):
        return None
    return lacking(job, _SEEN.get(reply, Right.TRAIN), user=user, rules=rules)


def lacking(job: Job, right: Right | None, *, user: str | None, rules: Rules) -> Problem | None:
    """Why a login may not do with a job what takes this right (None: what only its owner may); None: it may."""
    if user is None or user in rules.operators:
        return None
    is_nobodys = job.owner is None and team_of(job.job_id, rules.teams) is None
    is_operators = is_nobodys and right in (None, Right.OPERATE)
    if owns(user, owner=job.owner, job_id=job.job_id, teams=rules.teams) and not is_operators:
        return None
    if right is not None and is_granted(right, user, job.grants):
        return None
    whose = f"job {job.job_id} belongs to {job.owner or team_of(job.job_id, rules.teams) or 'nobody'}"
    return Problem(
        type="not_owner",
        title="The job belongs to another login",
        detail=f"{whose}, the command came from {user}; {_advice(job, right, user=user, is_nobodys=is_nobodys)}",
    )


def _advice(job: Job, right: Right | None, *, user: str, is_nobodys: bool) -> str:
    if job.is_deleted:
        return "it was deleted, and its name stays in use until an operator purges it: choose another job_id"
    if is_nobodys:
        return f"an operator can give it to somebody: `bso jobs give {job.job_id} {shlex.quote(user)}`"
    if right is None:
        return "only its owner, the owner's team or an operator may do this"
    command = f"bso jobs grant {job.job_id} {shlex.quote(user)} --may {right.value}"
    return f"its owner, the owner's team or an operator can allow it: `{command}`"


def _named_after_others(job: Job, *, user: str | None, rules: Rules) -> Problem | None:
    """A new job may be named after a team only by a login of that team, or an operator."""
    team = team_of(job.job_id, rules.teams)
    if user is None or user in rules.operators or team in (None, team_of(user, rules.teams)):
        return None
    detail = (
        f"names that begin with {team}- are those of team {team}, the command came from {user}: choose another job_id"
    )
    return Problem(type="not_owner", title="The job's name belongs to a team", detail=detail)
