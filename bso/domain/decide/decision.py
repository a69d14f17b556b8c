"""What deciding gives, where and when it is done, and the steps that all decisions share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from bso.domain.events import Event
from bso.domain.frozen_values import replace
from bso.domain.job import Job
from bso.domain.policies import policy_named
from bso.domain.policy import Policy
from bso.domain.replies import Problem, Reply
from bso.domain.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Settings of the optimizer itself. ``operators`` are logins that may change jobs they do not own.

    A job may name ``max_batch_sizes`` at most: a choice takes 5 ms with 64 of them, all tried, and 0.1 s with 1000.
    """

    max_batch_sizes: int = 64
    lease_s: float = 600.0
    resume_window_s: float = 7 * 86400.0
    operators: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """By whom, when and under which rules a command is decided. ``command_id`` also seeds whatever ids are new.

    ``now`` is the database's clock.
    """

    command_id: str
    user: str | None
    now: datetime
    rules: Rules

    def lease_ends(self) -> datetime:
        """When a lease granted now ends."""
        return self.now + timedelta(seconds=self.rules.lease_s)

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
    return refused(job, "trial_ended", "The trial has ended", detail)


def with_lease(job: Job, trial_number: int, ends: datetime | None) -> Job:
    """The job with the lease of one trial set."""
    return job.with_trial(replace(job.trials[trial_number], lease_expires_at=ends))


def bound_of(job: Job, trial: Trial) -> float | None:
    """The cost [J] above which a trial is stopped; None: there is none, as for one that is unbounded."""
    return None if trial.is_unbounded else policy_of(job, trial).bound(job, trial)


def policy_of(job: Job, trial: Trial | None = None) -> Policy:
    """The policy of the current version, or of the version that a trial belongs to. Raises PolicyMissing."""
    return policy_named((job.spec if trial is None else job.spec_of(trial)).policy)
