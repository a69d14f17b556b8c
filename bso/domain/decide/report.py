"""Judging an epoch report."""

from __future__ import annotations

import math

from bso.domain.commands import ReportEpoch
from bso.domain.decide.contract import (
    Context,
    Decision,
    Facts,
    bound_of,
    policy_of,
    refused_after_end,
    refused_for,
    unchanged,
    with_lease,
)
from bso.domain.decide.trial_end import TrialEnd, attention_warnings, end_trial, should_retry, trial_cost
from bso.domain.events import EpochReported, Event, TrialResumed
from bso.domain.evolve import apply
from bso.domain.frozen_values import replace
from bso.domain.job import Job
from bso.domain.progress import MOST_REPORTED, Verdict, reported_cost, totals_of
from bso.domain.replies import EpochJudged
from bso.domain.trial import EpochReport, Outcome, Trial, TrialState


def report_epoch(job: Job, trial: Trial, command: ReportEpoch, facts: Facts, context: Context) -> Decision:
    """Record a report and say whether to go on."""
    is_awaited = trial.is_active or trial.may_report_late or (command.is_journalled and job.awaits_result(trial))
    if not (is_awaited or command.is_journalled):
        return refused_after_end(job, trial)
    problems = _problems(command)
    if problems:
        return refused_for(job, "invalid_report", "The report has values out of range", problems)
    if not is_awaited:  # its trial's end was decided before it
        return _earlier_epoch(job, trial, command, facts, context)
    if trial.reports and command.epoch <= trial.epoch:
        return _earlier_epoch(job, trial, command, facts, context)
    if not command.trial_id:
        command = _at_least_as_reported(trial, command)
    backwards = _backwards(trial, command)
    if backwards:
        return refused_for(job, "report_goes_backwards", "Cumulative totals never fall", backwards)
    return _record(job, trial, command, context)


def _record(job: Job, trial: Trial, command: ReportEpoch, context: Context) -> Decision:
    woken = _woken(trial)
    before = apply(job, woken)
    reported = _reported(before, trial, command, is_fill_in=False)
    after = _renewed(apply(before, [reported]), trial, context)
    events: tuple[Event, ...] = (*woken, reported)
    reporting = after.trials[trial.trial_number]
    if command.is_journalled:
        reply = EpochJudged(should_stop=False, reason="recorded", cost=reported.cost, bound=reported.bound)
        return Decision(job=after, events=events, reply=reply)
    verdict = policy_of(after, reporting).judge(after, reporting)
    if verdict.outcome is None:
        reply = EpochJudged(should_stop=False, reason=verdict.reason, cost=reported.cost, bound=reported.bound)
        return Decision(job=after, events=events, reply=reply)
    doubt = _doubt(after, reporting, verdict)
    reason = f"{verdict.reason}{doubt}"
    ending = TrialEnd.of(reporting, verdict.outcome, reason)
    after, ended = end_trial(after, reporting, ending, context.now, is_judgement=True)
    warnings = attention_warnings(after, ended)
    if doubt:
        warnings = (f"trial {trial.trial_number} of job {job.job_id}: {reason}",)
    reply = EpochJudged(
        should_stop=True,
        reason=reason,
        cost=reported.cost,
        bound=reported.bound,
        outcome=verdict.outcome,
        should_retry=should_retry(after, trial),
        warnings=warnings,
        is_over_bound=after.trials[trial.trial_number].is_over_bound,
    )
    return Decision(job=after, events=(*events, *ended), reply=reply)


def _doubt(job: Job, trial: Trial, verdict: Verdict) -> str:
    """What to ask where the first trial that reaches the target does so at once, as by mistake any model does."""
    if verdict.outcome is not Outcome.CONVERGED or not trial.is_evaluated_once:
        return ""
    version = job.versions[trial.version_number]
    known = version.knowledge.values()
    if any(one.change_points or any(arm.convergences for arm in one.arms.values()) for one in known):
        return ""
    spec = version.spec
    return (
        f", with the first evaluation: is higher_is_better_metric ({spec.higher_is_better_metric}) right, and the "
        "target not too easy?"
    )


def _earlier_epoch(job: Job, trial: Trial, command: ReportEpoch, facts: Facts, context: Context) -> Decision:
    """Fill a gap in, answer a repetition again, or set a contradiction aside."""
    answered = EpochJudged(should_stop=False, reason="recorded before", cost=trial.cost, bound=trial.bound)
    earlier = facts.earlier_report
    if earlier is None:
        woken = _woken(trial)
        before = apply(job, woken)
        reported = _reported(before, trial, command, is_fill_in=True)
        after = _renewed(apply(before, [reported]), trial, context)
        late = replace(answered, reason="recorded late, and so not judged")
        return Decision(job=after, events=(*woken, reported), reply=late)
    same = EpochReport(epoch=command.epoch, time_s=command.time_s, energy_j=command.energy_j, metric=command.metric)
    differing = _differing(earlier, same)
    if not (differing and command.trial_id):
        return unchanged(job, answered)
    return refused_for(job, "conflicting_report", "The epoch was reported before with other numbers", differing)


def _at_least_as_reported(trial: Trial, command: ReportEpoch) -> ReportEpoch:
    """A report of one of several ranks, each of which has measured itself: the totals go on from the highest ones."""
    energy_j = None if command.energy_j is None else max(command.energy_j, trial.energy_j)
    return replace(command, time_s=max(command.time_s, trial.time_s), energy_j=energy_j)


def _differing(earlier: EpochReport, later: EpochReport) -> dict[str, str]:
    """What two reports of one epoch do not agree on, by field."""
    both = {name: (getattr(earlier, name), getattr(later, name)) for name in ("time_s", "energy_j", "metric")}
    if math.isnan(earlier.metric) and math.isnan(later.metric):
        del both["metric"]
    words = f"at epoch {earlier.epoch:g} in the report before, got"
    return {name: f"was {one} {words} {other}" for name, (one, other) in both.items() if one != other}


def _problems(command: ReportEpoch) -> dict[str, str]:
    problems: dict[str, str] = {}
    if not 0 < command.epoch <= MOST_REPORTED:
        problems["epoch"] = f"must be a positive number of epochs of at most {MOST_REPORTED:g}, got {command.epoch:g}"
    if not 0 <= command.time_s <= MOST_REPORTED:
        problems["time_s"] = f"must be a number of seconds from 0 to {MOST_REPORTED:g}, got {command.time_s:g}"
    if command.energy_j is not None and not 0 <= command.energy_j <= MOST_REPORTED:
        problems["energy_j"] = (
            f"must be a number of joules from 0 to {MOST_REPORTED:g}, or null if it was not measured; "
            f"got {command.energy_j:g}"
        )
    return problems


def _backwards(trial: Trial, command: ReportEpoch) -> dict[str, str]:
    problems: dict[str, str] = {}
    if command.time_s < trial.time_s:
        problems["time_s"] = f"was {trial.time_s:g} at epoch {trial.epoch:g}, got {command.time_s:g}"
    if command.energy_j is not None and command.energy_j < trial.energy_j:
        problems["energy_j"] = f"was {trial.energy_j:g} at epoch {trial.epoch:g}, got {command.energy_j:g}"
    return problems


def _reported(job: Job, trial: Trial, command: ReportEpoch, *, is_fill_in: bool) -> EpochReported:
    if is_fill_in:
        totals = totals_of(trial, command)
        cost = trial_cost(job, trial, time_s=totals.time_s, energy_j=totals.energy_j)
    else:
        cost = reported_cost(trial, command, spec=job.spec_of(trial), hardware=trial.hardware)
    return EpochReported(
        trial_number=trial.trial_number,
        epoch=command.epoch,
        time_s=command.time_s,
        energy_j=command.energy_j,
        metric=command.metric,
        cost=cost,
        bound=bound_of(job, trial),
        is_journalled=command.is_journalled,
        is_fill_in=is_fill_in,
        is_profiling=command.is_profiling,
    )


def _woken(trial: Trial) -> tuple[Event, ...]:
    if trial.state is not TrialState.SUSPENDED:
        return ()
    return (TrialResumed(trial_number=trial.trial_number),)


def _renewed(job: Job, trial: Trial, context: Context) -> Job:
    if not trial.is_active:
        return job
    return with_lease(job, trial.trial_number, context.lease_ends(job.trials[trial.trial_number]))
