"""The contract of deciding: the facts that it needs, the decision that it gives, and the steps that all share.

Facts come in two steps, as a store is asked for them before, so that deciding stays pure: a command about a trial that
is not loaded needs the trial; only that shows what else it needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from bso.domain.commands import (
    BeginTrial,
    Command,
    GiveJob,
    PowerMeasurement,
    RegisterJob,
    RenewLease,
    ReportEpoch,
    ReportPowerProfile,
    TrialCommand,
)
from bso.domain.events import EpochReported, Event, JobDeleted, PowerProfiled
from bso.domain.frozen_values import replace
from bso.domain.hardware import HardwareKind
from bso.domain.identifiers import identifier_problem, login_problem
from bso.domain.job import Job
from bso.domain.policies import BadPolicy, policy_named
from bso.domain.policy import Policy
from bso.domain.quotas import Quota, over_quota, quota_of
from bso.domain.replies import NearestPowerProfile, Problem, Reply
from bso.domain.trial import EpochReport, Trial

PowerProfiles = Mapping[tuple[int, str], tuple[PowerMeasurement, ...]]
"""What was measured under several power limits, by batch size and key of the hardware kind."""

ReportKey = tuple[int, float]
"""trial_number and epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must be known to decide a command; None: nothing of that kind.

    ``trial`` is the number of a trial that the job has and that is not loaded: load it into the job, and ask again.
    ``earlier_report`` is what the log holds for exactly the reported epoch, ``power_profiles`` what was measured on a
    hardware kind, ``other_job`` the job to inherit from. ``new_owner`` is the login that will own one more job.
    """

    trial: int | None = None
    earlier_report: ReportKey | None = None
    power_profiles: HardwareKind | None = None
    other_job: str | None = None
    new_owner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The answer to Needs, field by field; None, or empty: it does not exist, or was not needed.

    ``jobs_owned`` are the jobs that ``new_owner`` owns already, where its quota limits them.
    """

    trial: Trial | None = None
    earlier_report: EpochReport | None = None
    power_profiles: PowerProfiles = field(default_factory=dict)
    other_job: Job | None = None
    jobs_owned: int | None = None

    def power_profile(self, batch_size: int, hardware: HardwareKind) -> tuple[PowerMeasurement, ...]:
        """What was measured of a batch size on a hardware kind; empty if nothing was."""
        return self.power_profiles.get((batch_size, hardware.key), ())

    def nearest_power_profile(self, batch_size: int, hardware: HardwareKind) -> NearestPowerProfile | None:
        """What was measured there of the batch size at the smallest ratio to one that has no profile.

        Of two at the same ratio the smaller one counts. None: the batch size has a profile, or no other one has.
        """
        if self.power_profile(batch_size, hardware):
            return None
        profiled = {size: measured for (size, key), measured in self.power_profiles.items() if key == hardware.key}
        if not profiled:
            return None
        nearest = min(profiled, key=lambda size: (max(size, batch_size) / min(size, batch_size), size))
        return NearestPowerProfile(batch_size=nearest, measurements=profiled[nearest])


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What was loaded of some jobs beside their states: ended trials, reports and power profiles; and other jobs.

    The keys are those of the tables: job_id first. ``jobs_owned`` are counted by login.
    """

    trials: Mapping[tuple[str, int], Trial] = field(default_factory=dict)
    reports: Mapping[tuple[str, ReportKey], EpochReport] = field(default_factory=dict)
    power_profiles: Mapping[str, PowerProfiles] = field(default_factory=dict)
    other_jobs: Mapping[str, Job] = field(default_factory=dict)
    jobs_owned: Mapping[str, int] = field(default_factory=dict)


_NO_NEEDS = Needs()
_NO_FACTS = Facts()


def needs(job: Job, command: Command, *, user: str | None = None) -> Needs:
    """What must be known to decide a command of a login on a job as it is loaded."""
    if isinstance(command, TrialCommand):
        trial = job.trials.get(command.trial_number)
        if trial is not None:
            return _needs_with(trial, job, command)
        return Needs(trial=command.trial_number) if 0 < command.trial_number <= job.last_trial_number else _NO_NEEDS
    if isinstance(command, BeginTrial | ReportPowerProfile) and job.has_power_profiles:
        return Needs(power_profiles=command.hardware)
    if isinstance(command, RegisterJob):
        is_named = command.like not in (None, job.job_id) and not identifier_problem(command.like)
        return Needs(other_job=command.like if is_named else None, new_owner=user if is_one_more(job, user) else None)
    if isinstance(command, GiveJob) and not login_problem(command.login):
        return Needs(new_owner=command.login)
    return _NO_NEEDS


def facts_for(job: Job, command: Command, known: Known, *, since: Sequence[Event], user: str | None = None) -> Facts:
    """The facts that a command of a login needs, in the two steps that finding them takes.

    ``since`` are the events of the job after what is ``known`` was loaded.
    """
    needed = needs(job, command, user=user)
    if needed is _NO_NEEDS:
        return _NO_FACTS
    trial = None if needed.trial is None else known.trials.get((job.job_id, needed.trial))
    if trial is not None:
        needed = needs(job.with_trial(trial), command)
    key, hardware, other = needed.earlier_report, needed.power_profiles, needed.other_job
    return Facts(
        trial=trial,
        earlier_report=None if key is None else known.reports.get((job.job_id, key)) or _reported(key, since),
        power_profiles={} if hardware is None else _latest(known.power_profiles.get(job.job_id, {}), hardware, since),
        other_job=None if other is None else known.other_jobs.get(other),
        jobs_owned=None if needed.new_owner is None else known.jobs_owned.get(needed.new_owner),
    )


def _reported(key: ReportKey, events: Sequence[Event]) -> EpochReport | None:
    new = (event for event in events if isinstance(event, EpochReported))
    return next((event.report for event in new if (event.trial_number, event.epoch) == key), None)


def _latest(profiles: PowerProfiles, hardware: HardwareKind, events: Sequence[Event]) -> PowerProfiles:
    """The power profiles on a hardware kind after some events. A deleted job has none."""
    for event in events:
        if isinstance(event, JobDeleted):
            profiles = {}
        elif isinstance(event, PowerProfiled) and event.hardware.key == hardware.key:
            profiles = {**profiles, (event.batch_size, hardware.key): event.measurements}
    return profiles


def _needs_with(trial: Trial, job: Job, command: TrialCommand) -> Needs:
    """What a command needs beside the trial that it is about."""
    if isinstance(command, ReportEpoch):
        is_past = command.epoch <= trial.epoch or not trial.is_active
        is_in_doubt = trial.reports > 0 and is_past and math.isfinite(command.epoch)
        return Needs(earlier_report=(trial.trial_number, command.epoch)) if is_in_doubt else _NO_NEEDS
    if isinstance(command, RenewLease) and command.is_resumption and job.has_power_profiles:
        return Needs(power_profiles=trial.hardware)
    return _NO_NEEDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Settings of the optimizer itself. ``operators`` are logins that may do anything with any job.

    Logins and jobs named after one of the ``teams`` belong together: ``vision``, ``vision-ci``, job ``vision-resnet``.

    A job may name ``max_batch_sizes`` at most: a choice takes 5 ms with 64 of them, all tried, and 0.1 s with 1000.
    ``quotas`` are those of logins by name.
    """

    max_batch_sizes: int = 64
    lease_s: float = 600.0
    resume_window_s: float = 7 * 86400.0
    operators: frozenset[str] = frozenset()
    teams: frozenset[str] = frozenset()
    quotas: Mapping[str, Quota] = field(default_factory=dict)

    def lease_of(self, trial: Trial) -> float:
        """How long [s] a trial may stay silent."""
        return max(self.lease_s, trial.silence_s or 0.0)

    def quota_of(self, user: str | None) -> Quota:
        """How much a login may have; an operator, and who is not known, as much as they like."""
        return quota_of(user, quotas=self.quotas, operators=self.operators)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """By whom, when and under which rules a command is decided. ``command_id`` also seeds whatever ids are new.

    ``now`` is the database's clock. A command that ``is_from_gateway`` may name its trial by number alone.
    """

    command_id: str
    user: str | None
    now: datetime
    rules: Rules
    is_from_gateway: bool = False

    def lease_ends(self, trial: Trial) -> datetime:
        """When a lease that the trial gets now ends."""
        return self.now + timedelta(seconds=self.rules.lease_of(trial))

    def resume_window_ends(self) -> datetime:
        """Until when a trial suspended now may wake up."""
        return self.now + timedelta(seconds=self.rules.resume_window_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The events of a command, the job after them (leases set), and the reply."""

    job: Job
    events: tuple[Event, ...]
    reply: Reply


def unchanged(job: Job, reply: Reply) -> Decision:
    """A decision that nothing happens."""
    return Decision(job=job, events=(), reply=reply)


def refused(job: Job, problem_type: str, title: str, detail: str, fields: dict[str, str] | None = None) -> Decision:
    """A decision to refuse a command: it leaves no trace."""
    return unchanged(job, Problem(type=problem_type, title=title, detail=detail, fields=fields or {}))


def refused_for(job: Job, problem_type: str, title: str, problems: dict[str, str]) -> Decision:
    """A decision to refuse a command for what is wrong with its fields, by name."""
    return refused(job, problem_type, title, "; ".join(f"{name} {each}" for name, each in problems.items()), problems)


def refused_after_end(job: Job, trial: Trial) -> Decision:
    """A decision to refuse a command that comes after the end of its trial."""
    outcome = trial.outcome.value if trial.outcome else "ended"
    detail = f"trial {trial.trial_number} ended as {outcome} ({trial.outcome_reason}): begin another one"
    context = {"outcome": outcome, "is_over_bound": trial.is_over_bound}
    ended = Problem(type="trial_ended", title="The trial has ended", detail=detail, context=context)
    return unchanged(job, ended)


def is_one_more(job: Job, user: str | None) -> bool:
    """Whether a login that registers a job owns one job more; a name that it has deleted is its own already."""
    return not job.is_registered and not (job.is_deleted and job.owner == user)


def one_job_too_many(login: str | None, facts: Facts, context: Context) -> Problem | None:
    """Why a login may not own another job; None: it may."""
    most = context.rules.quota_of(login).jobs
    if most is None:
        return None
    assert facts.jobs_owned is not None, "the jobs of a login with such a limit are counted"
    if facts.jobs_owned < most:
        return None
    detail = f"login {login} owns {facts.jobs_owned} jobs, those deleted and not purged included, and may own {most}"
    return over_quota("jobs", detail)


def with_lease(job: Job, trial_number: int, ends: datetime | None) -> Job:
    """The job with the lease of one trial set."""
    return job.with_trial(replace(job.trials[trial_number], lease_expires_at=ends))


def bound_of(job: Job, trial: Trial) -> float | None:
    """The cost [J] above which a trial is stopped; None: there is none, as for one that is unbounded."""
    if trial.is_unbounded:
        return None
    bound = policy_of(job, trial).bound(job, trial)
    is_number = isinstance(bound, float | int) and not math.isnan(bound)  # nobody checks the types of others' policies
    if bound is not None and not is_number:
        name = job.spec_of(trial).policy
        raise BadPolicy(f"policy {name}: bound has to return a number of joules, or None, got {bound!r}")
    return bound


def policy_of(job: Job, trial: Trial | None = None) -> Policy:
    """The policy of the current version, or of the version that a trial belongs to. Raises PolicyMissing."""
    return policy_named((job.spec if trial is None else job.spec_of(trial)).policy)
