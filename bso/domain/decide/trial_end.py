"""The end of a trial: what it says about its batch size, and whether its recurrence is over."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from bso.domain.attention import attention_needed
from bso.domain.commands import FinishTrial
from bso.domain.decide.contract import Context, Decision, policy_of, refused_for, unchanged, with_lease
from bso.domain.events import (
    AttentionNeeded,
    Event,
    LateResult,
    RecurrenceEnded,
    StopAcknowledged,
    StopWithdrawn,
    TrialEnded,
    TrialSuspended,
)
from bso.domain.evolve import apply
from bso.domain.foreign_text import shown
from bso.domain.frozen_values import replace
from bso.domain.job import Job, Recurrence
from bso.domain.knowledge import reference_of
from bso.domain.policies import BadPolicy
from bso.domain.progress import MOST_REPORTED, cost_of, undistorted
from bso.domain.replies import TrialFinished
from bso.domain.trial import FAILURES, LEASE_LAPSED, Outcome, Trial, TrialState, reason_code

MAX_REASON_LENGTH = 1000
_WITH_COST = frozenset({Outcome.CONVERGED, Outcome.COST_EXCEEDED})
_NO_RESULT = frozenset({Outcome.INTERRUPTED, Outcome.CANCELLED})
_NOTHING_REPORTED = "its training ended before its first report; the GPU may have been out of memory"
DECLARED_BY_CLIENT = frozenset({Outcome.NOT_CONVERGED, Outcome.INFEASIBLE, Outcome.INTERRUPTED, Outcome.CANCELLED})
"""The outcomes that a live training may state; the others are those of judgements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnd:
    """How a trial ended, and its totals. Cost and bound in J."""

    outcome: Outcome
    reason: str
    cost: float
    time_s: float
    energy_j: float
    bound: float | None

    @classmethod
    def of(cls, trial: Trial, outcome: Outcome, reason: str) -> TrialEnd:
        """The ending of a trial with the totals of its last report."""
        return cls(
            outcome=outcome,
            reason=reason,
            cost=trial.cost,
            time_s=trial.time_s,
            energy_j=trial.energy_j,
            bound=trial.bound,
        )


def end_trial(
    job: Job, trial: Trial, ending: TrialEnd, now: datetime, *, is_judgement: bool = False
) -> tuple[Job, tuple[Event, ...]]:
    """The job after a trial's end, or after a result that comes later, and the events of it."""
    withdrawal: tuple[Event, ...] = ()
    if trial.trial_number in job.unacknowledged_stops:
        withdrawal = (StopWithdrawn(trial_number=trial.trial_number),)
        job = apply(job, withdrawal)
    is_stop = is_judgement and ending.outcome in FAILURES
    is_over_bound = ending.outcome is Outcome.CONVERGED and _is_over_bound(job, trial, ending.cost)
    make = (
        partial(TrialEnded, ended_at=now, is_stop=is_stop)
        if trial.is_active
        else partial(LateResult, recorded_outcome=trial.outcome)
    )
    ended = make(
        trial_number=trial.trial_number,
        outcome=ending.outcome,
        reason=ending.reason,
        cost=ending.cost,
        time_s=ending.time_s,
        energy_j=ending.energy_j,
        bound=ending.bound,
        is_over_bound=is_over_bound,
        is_failure=ending.outcome in FAILURES,
        learnt_cost=_cost_to_learn(job, trial, ending),
    )
    learnt = tuple(policy_of(job, trial).learn(job, trial, ended))
    ends = [event for event in learnt if isinstance(event, TrialEnded | LateResult)]
    if [(type(end), end.trial_number) for end in ends] != [(type(ended), trial.trial_number)]:
        raise BadPolicy(
            f"policy {job.spec_of(trial).policy} returned {len(ends)} ends of trials: learn has to return that of "
            f"trial {trial.trial_number}, once, with what it entails"
        )
    job = apply(job, learnt)
    last = _end_of_recurrence(job, trial, ending.outcome)
    return apply(job, last), (*withdrawal, *learnt, *last)


def _is_over_bound(job: Job, trial: Trial, cost: float) -> bool:
    """Whether a cost [J] is above ``beta * reference``, doublings aside."""
    spec, knowledge = job.spec_of(trial), job.knowledge_of(trial)
    reference = reference_of(knowledge, spec, policy_of(job, trial).excluded(knowledge))
    return reference is not None and spec.beta_knob is not None and cost > spec.beta_knob * reference


def _cost_to_learn(job: Job, trial: Trial, ending: TrialEnd) -> float | None:
    """A converged cost in full [J], a censored one as it stands; None where energy is missing, or nothing was measured.

    As a reference a cost of nothing would stop every trial.
    """
    is_measured = trial.has_measured_cost(job.spec_of(trial))
    return ending.cost if ending.outcome in _WITH_COST and is_measured and ending.cost > 0.0 else None


def should_retry(job: Job, trial: Trial) -> bool:
    """Whether the recurrence of a trial still wants a model."""
    return trial.recurrence_id in job.recurrences


def attention_warnings(job: Job, events: Iterable[Event]) -> tuple[str, ...]:
    """What the user should know at the end of a trial, of a job that needs attention."""
    needed = [event for event in events if isinstance(event, AttentionNeeded)]
    return tuple(f"job {job.job_id} needs attention: {event.reason}" for event in needed)


def finish_trial(job: Job, trial: Trial, command: FinishTrial, context: Context) -> Decision:
    """End a trial as the training says, or suspend it if the training has a checkpoint to resume from."""
    if not command.trial_id and not trial.reports and command.outcome is Outcome.INTERRUPTED:
        command = replace(command, outcome=Outcome.NOT_CONVERGED, reason=_NOTHING_REPORTED)
    if trial.trial_number in job.unacknowledged_stops:
        if command.outcome is trial.outcome:
            known = StopAcknowledged(trial_number=trial.trial_number)
            return Decision(job=apply(job, [known]), events=(known,), reply=finished(job, trial))
        if not command.is_journalled:
            return unchanged(job, finished(job, trial))
    if not job.awaits_result(trial):
        return unchanged(job, finished(job, trial))
    problems = _problems(trial, command)
    if problems:
        return refused_for(job, "invalid_finish", "The trial cannot end like this", problems)
    if not trial.is_active and command.outcome in _NO_RESULT:
        return unchanged(job, finished(job, trial))
    if command.may_resume and command.outcome is Outcome.INTERRUPTED:
        return _suspend(job, trial, context)
    after, events = end_trial(job, _as_measured(trial, command), _ending(job, trial, command), context.now)
    reply = replace(finished(after, after.trials[trial.trial_number]), warnings=attention_warnings(after, events))
    return Decision(job=after, events=events, reply=reply)


def _as_measured(trial: Trial, command: FinishTrial) -> Trial:
    """The trial, its energy being incomplete where the totals go on after the last measurement of it."""
    is_measured = command.energy_j is not None
    is_as_reported = trial.reports > 0 and command.time_s in (None, trial.time_s)
    return replace(trial, is_energy_complete=trial.is_energy_complete and (is_measured or is_as_reported))


def finished(job: Job, trial: Trial) -> TrialFinished:
    """The reply about a trial that has ended, whenever that was."""
    return TrialFinished(
        outcome=trial.late_outcome or trial.outcome or Outcome.INTERRUPTED,
        reason=trial.outcome_reason,
        cost=trial.cost,
        should_retry=should_retry(job, trial),
    )


def _suspend(job: Job, trial: Trial, context: Context) -> Decision:
    events: tuple[Event, ...] = ()
    if trial.state is TrialState.RUNNING:
        events = (TrialSuspended(trial_number=trial.trial_number),)
    after = with_lease(apply(job, events), trial.trial_number, context.resume_window_ends())
    reply = TrialFinished(
        outcome=Outcome.INTERRUPTED, reason="suspended until it is resumed", cost=trial.cost, should_retry=True
    )
    return Decision(job=after, events=events, reply=reply)


def _problems(trial: Trial, command: FinishTrial) -> dict[str, str]:
    problems: dict[str, str] = {}
    if not command.is_journalled and command.outcome not in DECLARED_BY_CLIENT:
        problems["outcome"] = (
            f"is decided by the optimizer after a report; a live training may only state "
            f"{', '.join(sorted(outcome.value for outcome in DECLARED_BY_CLIENT))}, got {command.outcome.value}"
        )
    for name, total, last in (
        ("time_s", command.time_s, trial.time_s),
        ("energy_j", command.energy_j, trial.energy_j),
    ):
        if total is not None and not last <= total <= MOST_REPORTED:
            limits = f"of at least {last:g}, as last reported, and at most {MOST_REPORTED:g}"
            problems[name] = f"must be a total {limits}; got {total:g}"
    if command.bound is not None and not 0 < command.bound < math.inf:
        problems["bound"] = f"must be a positive finite cost, got {command.bound}"
    return problems


def _ending(job: Job, trial: Trial, command: FinishTrial) -> TrialEnd:
    time_s = trial.time_s if command.time_s is None else command.time_s
    energy_j = trial.energy_j if command.energy_j is None else command.energy_j
    ordinary = undistorted(trial.totals, trial.profiled)
    added_s, added_j = trial.time_s - ordinary.time_s, trial.energy_j - ordinary.energy_j
    return TrialEnd(
        outcome=command.outcome,
        reason=_stated_reason(command),
        cost=trial_cost(job, trial, time_s=time_s - added_s, energy_j=energy_j - added_j),
        time_s=time_s,
        energy_j=energy_j,
        bound=trial.bound if command.bound is None or not command.is_journalled else command.bound,
    )


def _stated_reason(command: FinishTrial) -> str:
    """The reason that the training gave, with hidden characters shown: refused, its result would be lost.

    It cannot claim to have been given up, which only the optimizer knows.
    """
    reason = shown(command.reason[:MAX_REASON_LENGTH])[:MAX_REASON_LENGTH]
    if not reason.strip() or reason_code(reason) == LEASE_LAPSED:
        return f"as the training reported: {command.outcome.value} {reason}".strip()
    return reason


def trial_cost(job: Job, trial: Trial, *, time_s: float, energy_j: float) -> float:
    """The cost [J] of a trial's time and energy, by the knobs of its version and the power of its hardware."""
    return cost_of(
        energy_j=energy_j,
        time_s=time_s,
        eta_knob=job.spec_of(trial).eta_knob,
        max_power_w=trial.hardware.max_power_w,
    )


def _end_of_recurrence(job: Job, trial: Trial, outcome: Outcome) -> tuple[Event, ...]:
    recurrence, number = job.recurrences.get(trial.recurrence_id), trial.trial_number
    if recurrence is None:
        return ()
    if outcome is Outcome.CONVERGED:
        reason = f"trial {number} converged"
        name = recurrence.recurrence_id
        return (RecurrenceEnded(recurrence_id=name, has_model=True, trial_number=number, reason=reason),)
    if not _is_last_attempt(job, trial, recurrence, outcome):
        return ()
    ended = RecurrenceEnded(
        recurrence_id=recurrence.recurrence_id,
        has_model=False,
        trial_number=None,
        reason=f"none of {recurrence.aborts} attempts converged"
        if recurrence.aborts > 1
        else f"its only trial, {number}, did not converge",
        version_number=trial.version_number,
        hardware_key=trial.hardware.key,
    )
    return (ended, *attention_needed(apply(job, [ended]), trial))


def _is_last_attempt(job: Job, trial: Trial, recurrence: Recurrence, outcome: Outcome) -> bool:
    """Whether no other trial follows this one: while the job needs attention, after one that did not converge.

    A batch size that cannot run, out of memory above all, has hardly cost anything, and a smaller one may fit.
    """
    if job.knowledge_of(trial).needs_attention and outcome is Outcome.NOT_CONVERGED:
        return True
    return outcome in FAILURES and recurrence.aborts >= job.spec_of(trial).max_attempts
