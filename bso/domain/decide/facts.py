"""What deciding a command needs beside its job: a store is asked for it before, so that deciding stays pure.

It comes in two steps. A command about a trial that is not loaded needs the trial; only that shows what else it needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bso.domain.commands import (
    TRIAL_COMMANDS,
    BeginTrial,
    Command,
    ExpireLease,
    FinishTrial,
    PowerMeasurement,
    RegisterJob,
    RenewLease,
    ReportEpoch,
)
from bso.domain.events import EpochReported, Event, JobDeleted, PowerProfiled
from bso.domain.hardware import HardwareKind
from bso.domain.identifiers import identifier_problem
from bso.domain.job import Job
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
    hardware kind, ``other_job`` the job to inherit from.
    """

    trial: int | None = None
    earlier_report: ReportKey | None = None
    power_profiles: HardwareKind | None = None
    other_job: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The answer to Needs, field by field; None, or empty: it does not exist, or was not needed."""

    trial: Trial | None = None
    earlier_report: EpochReport | None = None
    power_profiles: PowerProfiles = field(default_factory=dict)
    other_job: Job | None = None

    def power_profile(self, batch_size: int, hardware: HardwareKind) -> tuple[PowerMeasurement, ...]:
        """What was measured of a batch size on a hardware kind; empty if nothing was."""
        return self.power_profiles.get((batch_size, hardware.key), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What was loaded of some jobs beside their states: ended trials, reports and power profiles; and other jobs.

    The keys are those of the tables: job_id first.
    """

    trials: Mapping[tuple[str, int], Trial] = field(default_factory=dict)
    reports: Mapping[tuple[str, ReportKey], EpochReport] = field(default_factory=dict)
    power_profiles: Mapping[str, PowerProfiles] = field(default_factory=dict)
    other_jobs: Mapping[str, Job] = field(default_factory=dict)


_NO_NEEDS = Needs()
_NO_FACTS = Facts()


def needs(job: Job, command: Command) -> Needs:
    """What must be known to decide a command on a job as it is loaded."""
    if isinstance(command, TRIAL_COMMANDS):
        trial = job.trials.get(command.trial_number)
        if trial is not None:
            return _needs_with(trial, job, command)
        return Needs(trial=command.trial_number) if 0 < command.trial_number <= job.last_trial_number else _NO_NEEDS
    if isinstance(command, BeginTrial) and job.has_power_profiles:
        return Needs(power_profiles=command.hardware)
    if isinstance(command, RegisterJob) and command.like not in (None, job.job_id):
        return _NO_NEEDS if identifier_problem(command.like) else Needs(other_job=command.like)
    return _NO_NEEDS


def facts_for(job: Job, command: Command, known: Known, *, since: Sequence[Event]) -> Facts:
    """The facts that a command needs, in the two steps that finding them takes.

    ``since`` are the events of the job after what is ``known`` was loaded.
    """
    needed = needs(job, command)
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


def _needs_with(trial: Trial, job: Job, command: ReportEpoch | FinishTrial | RenewLease | ExpireLease) -> Needs:
    """What a command needs beside the trial that it is about."""
    if isinstance(command, ReportEpoch):
        is_past = command.epoch <= trial.epoch or not trial.is_active
        is_in_doubt = trial.reports > 0 and is_past and math.isfinite(command.epoch)
        return Needs(earlier_report=(trial.trial_number, command.epoch)) if is_in_doubt else _NO_NEEDS
    if isinstance(command, RenewLease) and command.is_resumption and job.has_power_profiles:
        return Needs(power_profiles=trial.hardware)
    return _NO_NEEDS
