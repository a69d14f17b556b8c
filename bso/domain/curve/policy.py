"""The policy ``curve``: what it decides for a job, in the terms of the policy seam."""

from __future__ import annotations

import math

from bso.domain.curve import choosing, normal
from bso.domain.curve.beliefs import Beliefs, beliefs_of
from bso.domain.curve.standing import standing_of
from bso.domain.curve.view import view_of
from bso.domain.events import ChangePoint, Event, LateResult, TrialEnded
from bso.domain.frozen_values import replace
from bso.domain.hardware import HardwareKind
from bso.domain.job import Job, JobVersion, Recurrence
from bso.domain.knowledge import Knowledge
from bso.domain.policy import Choice, Outlook, Verdict
from bso.domain.replies import Confidence
from bso.domain.stopping import judge_progress
from bso.domain.trial import FAILURES, Outcome, Trial, TrialState

_HUGE = 1e300  # J; no infinity is recorded
_LEAST_FREEDOM = 3.0  # with less, what is believed of the noise of costs is mostly a guess


class CurvePolicy:
    """Believes smooth curves over the batch size, and runs another one than the best known where that pays."""

    def choose(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> Choice:
        """The batch size for the next trial of a recurrence, of the job's current version."""
        now = _situation(
            job.version, job.version.knowledge_on(hardware), recurrence, _running(job, job.version.version_number)
        )
        if not now.is_last:
            return choosing.choose(now)
        if not recurrence.aborts:
            return replace(choosing.choose(now), is_unbounded=True)
        size = choosing.safest(now)
        words = f"attempt {recurrence.aborts + 1} of {job.version.spec.max_attempts} is the last: no bound"
        return Choice(batch_size=size, reason=f"{words}; {size} is most likely to converge", is_unbounded=True)

    def bound(self, job: Job, trial: Trial) -> float | None:
        """The cost [J] above which the trial is stopped."""
        return view_of(job, trial).bound

    def judge(self, job: Job, trial: Trial) -> Verdict:
        """Whether a running trial goes on, after its latest report."""
        view = view_of(job, trial)
        verdict = judge_progress(view.spec, trial, view.bound)
        if verdict.outcome is not None or not view.spec.early_stopping or trial.is_unbounded:
            return verdict
        reason = view.why_to_stop(trial)
        if reason is not None:
            return Verdict(outcome=Outcome.COST_EXCEEDED, reason=reason)
        return verdict if view.patience is None else Verdict(outcome=None, reason=view.patience)

    def learn(self, job: Job, trial: Trial, ended: TrialEnded | LateResult) -> tuple[Event, ...]:
        """A change point, where surprises show one, and the end itself with what was fitted to it: in this order."""
        is_measured = trial.is_energy_complete or job.spec_of(trial).eta_knob == 0.0
        has_cost = ended.outcome in (Outcome.CONVERGED, Outcome.COST_EXCEEDED) and is_measured and ended.cost > 0.0
        view = view_of(job, trial)
        ended = replace(
            ended,
            is_failure=ended.outcome in FAILURES,
            learnt_cost=ended.cost if has_cost else None,
            learnt_curve=view.learnt(trial, ended, is_measured=is_measured),
        )
        change = _change_point(trial, ended, view.beliefs)
        return (ended,) if change is None else (change, ended)

    def outlook(self, version: JobVersion, knowledge: Knowledge) -> Outlook:
        """What each batch size is believed to cost; nothing before an epoch was paid for on this hardware kind."""
        beliefs, is_known = beliefs_of(version, knowledge), knowledge.epoch_costs.is_seen
        expected = {size: beliefs.expectation(size) for size in beliefs.sizes if is_known}
        return Outlook(best_batch_size=standing_of(version, knowledge, None).best(beliefs), expected=expected)

    def confidence(self, version: JobVersion, knowledge: Knowledge, best: int) -> Confidence | None:
        """How sure it is that ``best`` is the best one; None before any epoch was paid for on this hardware kind."""
        costs = knowledge.epoch_costs
        if not costs.is_seen:
            return None
        now = _situation(version, knowledge, None, ())
        return choosing.confidence_in(now, best, runs=costs.runs, is_noise_known=costs.freedom >= _LEAST_FREEDOM)


def _situation(
    version: JobVersion, knowledge: Knowledge, recurrence: Recurrence | None, running: tuple[int, ...]
) -> choosing.Situation:
    """What a choice depends on, in a recurrence or apart from any: then as many have been as trials have ended."""
    records = version.epochs.records
    looks = {size: record.looks for size, record in records.items()}
    aborts = 0 if recurrence is None else recurrence.aborts
    return choosing.Situation(
        beliefs=beliefs_of(version, knowledge, running),
        standing=standing_of(version, knowledge, recurrence),
        default_batch_size=version.spec.default_batch_size,
        running=running,
        recurrences=sum(looks.values()) if recurrence is None else recurrence.recurrence_number - 1,
        aborts=aborts,
        is_last=aborts + 1 >= version.spec.max_attempts,
        is_unproven=version.epochs.is_unproven,
        is_unpriced=_is_unpriced(version, knowledge),
        inherits_costs=knowledge.epoch_costs.is_inherited,
        looks=looks,
        failures={size: record.failed for size, record in records.items()},
    )


def _is_unpriced(version: JobVersion, knowledge: Knowledge) -> bool:
    """Whether no run has ended on a hardware kind, so that only other kinds or versions say how costs compare."""
    costs = knowledge.epoch_costs
    has_ended = any(
        arm.convergences or arm.not_converged_in_a_row or arm.costs.count for arm in knowledge.arms.values()
    )
    is_known = bool(costs.records) or version.costs_elsewhere(knowledge.hardware) is not None
    return is_known and not costs.is_seen and not has_ended


def _change_point(trial: Trial, ended: TrialEnded | LateResult, beliefs: Beliefs) -> ChangePoint | None:
    """Runs take more or fewer epochs than they used to, if what was known is partly forgotten with this one.

    The old reference is what it would have cost with as many epochs as were expected.
    """
    learnt = None if ended.learnt_curve is None else ended.learnt_curve.epochs
    if learnt is None or learnt.kept == 1.0:
        return None
    return ChangePoint(
        version_number=trial.version_number,
        hardware_key=trial.hardware.key,
        trial_number=trial.trial_number,
        cost=ended.cost,
        old_reference=min(ended.cost * normal.exp(beliefs.of(trial.batch_size).epochs - math.log(trial.epoch)), _HUGE),
    )


def _running(job: Job, version_number: int) -> tuple[int, ...]:
    """The batch sizes of the running trials of a version, on whatever hardware."""
    return tuple(
        trial.batch_size
        for trial in job.active_trials()
        if trial.state is TrialState.RUNNING and trial.version_number == version_number
    )
