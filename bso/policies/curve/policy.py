"""The policy ``curve``: what it decides for a job, in the terms of the policy seam."""

from __future__ import annotations

import math
from typing import Any

from bso.domain.events import ChangePoint, Event, LateResult, PolicyData, TrialEnded
from bso.domain.frozen_values import replace
from bso.domain.hardware import HardwareKind
from bso.domain.job import Job, JobVersion, Recurrence
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import Knowledge, feasible
from bso.domain.policy import ArmStatus, Choice, Inherited, Outlook, Policy
from bso.domain.progress import Verdict, judge_progress
from bso.domain.replies import Confidence
from bso.domain.trial import Outcome, Trial
from bso.policies.curve import choices, normal
from bso.policies.curve.beliefs import Beliefs, beliefs_of
from bso.policies.curve.cost_records import EpochCostKnowledge
from bso.policies.curve.epoch_records import EpochKnowledge
from bso.policies.curve.lessons import learnt_from
from bso.policies.curve.memory import NAME, LearntCurve, costs_elsewhere, epoch_costs_on, epochs_of, evolved
from bso.policies.curve.standing import standing_of
from bso.policies.curve.view import view_of

_HUGE = 1e300  # J; no infinity is recorded
_MOST_PROBES = 16  # batch sizes on a hardware kind: how costs compare is smooth, and each makes choices slower
_LEAST_FREEDOM = 3.0  # with less, what is believed of the noise of costs is mostly a guess


class CurvePolicy(Policy):
    """Believes smooth curves over the batch size, and runs another one than the best known where that pays."""

    name = NAME
    version_memory = EpochKnowledge
    hardware_memory = EpochCostKnowledge
    learnt = LearntCurve
    about_costs = (
        "what a training to the target should cost now, ± one standard deviation. It also counts other batch sizes, "
        "changes and failures, so it may differ from the mean"
    )

    def choose(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> Choice:
        """The batch size for the next trial of a recurrence, of the job's current version."""
        version = job.version
        running = tuple(trial.batch_size for trial in job.running_trials(version.version_number))
        now = _situation(version, version.knowledge_on(hardware), recurrence, running)
        if not (now.is_last and recurrence.aborts):
            return choices.choose(now)
        size = choices.safest(now)
        words = f"attempt {recurrence.aborts + 1} of {version.spec.max_attempts} is the last: no bound"
        return Choice(batch_size=size, reason=f"{words}; {size} is most likely to converge")

    def to_probe(self, version: JobVersion, knowledge: Knowledge, batch_size: int) -> tuple[int, ...]:
        """Those whose epoch cost was neither paid nor probed on the hardware kind, the nearest first."""
        costs, fitting = epoch_costs_on(knowledge), feasible(knowledge, version.spec)
        unknown = [size for size in fitting if not costs.record(size).sums.weight and size not in costs.probes]
        others = sorted(unknown, key=lambda size: (abs(math.log2(size / batch_size)), -size))
        return tuple(size for size in others if size != batch_size)[: max(0, _MOST_PROBES - len(costs.probes))]

    def bound(self, job: Job, trial: Trial) -> float | None:
        """The cost [J] above which the trial is stopped."""
        return view_of(job, trial).bound

    def judge(self, job: Job, trial: Trial) -> Verdict:
        """Whether a running trial goes on, after its latest report."""
        if trial.is_unbounded:
            return judge_progress(job.spec_of(trial), trial, None)
        view = view_of(job, trial)
        verdict = judge_progress(view.spec, trial, view.bound)
        if verdict.outcome is not None or not view.spec.early_stopping:
            return verdict
        reason = view.why_to_stop(trial)
        if reason is not None:
            return Verdict(outcome=Outcome.COST_EXCEEDED, reason=reason)
        return verdict if view.patience is None else Verdict(outcome=None, reason=view.patience)

    def learn(self, job: Job, trial: Trial, ended: TrialEnded | LateResult) -> tuple[Event, ...]:
        """A change point, where surprises show one, and the end itself with what was fitted to it: in this order."""
        beliefs = beliefs_of(job.versions[trial.version_number], job.knowledge_of(trial))
        learnt = learnt_from(view_of(job, trial), beliefs, trial, ended)
        ended = replace(ended, learnt=None if learnt is None else PolicyData(policy=NAME, data=learnt))
        change = _change_point(trial, ended, learnt, beliefs)
        return (ended,) if change is None else (change, ended)

    def evolve(self, before: Job, after: Job, event: Any) -> Job:
        """The job after an event, with what is remembered of it."""
        return evolved(before, after, event)

    def has_converged(self, version: JobVersion, knowledge: Knowledge, batch_size: int) -> bool:
        """Whether a batch size has converged in a version, also before its trainings changed."""
        epochs = epochs_of(version)
        is_remembered = epochs.record(batch_size).has_converged and not epochs.is_unproven
        return super().has_converged(version, knowledge, batch_size) or is_remembered

    def inherit(self, source: JobVersion, spec: JobSpec, *, is_sibling: bool) -> Inherited | None:
        """What a version takes over from another one; None: that one has no run.

        What the difference between two versions of a job does not concern is taken over as it is: epoch costs where
        only the target differs, epochs where only eta_knob does. All else is what was before a change, which the
        version's own runs confirm or refute.
        """
        epochs, one = epochs_of(source), source.spec
        if not epochs.records:
            return None
        is_same_training = not is_sibling and one.version == spec.version
        has_same_target = (one.target_metric, one.higher_is_better_metric) == (
            spec.target_metric,
            spec.higher_is_better_metric,
        )
        are_costs_same = is_same_training and one.eta_knob == spec.eta_knob
        costs = {key: epoch_costs_on(known) for key, known in source.knowledge.items()}
        if not are_costs_same:
            costs = {key: known.handed_on() for key, known in costs.items()}
        epochs = epochs.at_rest() if is_same_training and has_same_target else epochs.handed_on()
        sizes = frozenset(epochs.records).union(*(known.records for known in costs.values()))
        return Inherited(memory=epochs, on_hardware=costs, batch_sizes=sizes)

    def outlook(self, version: JobVersion, knowledge: Knowledge) -> Outlook:
        """What each batch size is believed to cost; nothing before an epoch was paid for on this hardware kind."""
        beliefs, is_known = beliefs_of(version, knowledge), epoch_costs_on(knowledge).is_seen
        expected = {size: beliefs.expectation(size) for size in beliefs.sizes if is_known}
        return Outlook(best_batch_size=standing_of(version, knowledge, None).best(beliefs), expected=expected)

    def confidence(self, version: JobVersion, knowledge: Knowledge, best: int) -> Confidence | None:
        """How sure it is that ``best`` is the best one; None before any epoch was paid for on this hardware kind."""
        costs = epoch_costs_on(knowledge)
        if not costs.is_seen:
            return None
        now = _situation(version, knowledge, None, ())
        return choices.confidence_in(now, best, runs=costs.runs, is_noise_known=costs.freedom >= _LEAST_FREEDOM)

    def standing(self, version: JobVersion, knowledge: Knowledge, batch_size: int, *, is_running: bool) -> ArmStatus:
        """Whether a batch size is offered, or has missed its target repeatedly, stops included."""
        del is_running
        found = standing_of(version, knowledge, None)
        is_offered = batch_size in found.offered or batch_size not in found.usable
        return ArmStatus(status="arm") if is_offered else ArmStatus.excluded(found.misses[batch_size])


def _situation(
    version: JobVersion, knowledge: Knowledge, recurrence: Recurrence | None, running: tuple[int, ...]
) -> choices.Situation:
    """What a choice depends on, in a recurrence or apart from any: then as many have been as trials have ended."""
    epochs = epochs_of(version)
    records = epochs.records
    looks = {size: record.looks for size, record in records.items()}
    aborts = 0 if recurrence is None else recurrence.aborts
    return choices.Situation(
        beliefs=beliefs_of(version, knowledge, running),
        standing=standing_of(version, knowledge, recurrence),
        default_batch_size=version.spec.default_batch_size,
        running=running,
        recurrences=sum(looks.values()) if recurrence is None else recurrence.recurrence_number - 1,
        aborts=aborts,
        is_last=recurrence is not None and recurrence.is_on_last_attempt(version.spec),
        is_unproven=epochs.is_unproven,
        is_uncounted=epochs.is_uncounted,
        is_unpriced=_is_unpriced(version, knowledge),
        inherits_costs=epoch_costs_on(knowledge).is_inherited,
        looks=looks,
        failures={size: record.failed for size, record in records.items()},
        too_large_from=min((size for size, arm in knowledge.arms.items() if arm.out_of_memories), default=None),
    )


def _is_unpriced(version: JobVersion, knowledge: Knowledge) -> bool:
    """Whether no run has ended on a hardware kind, so that only other kinds or versions say how costs compare."""
    costs = epoch_costs_on(knowledge)
    has_ended = any(
        arm.convergences or arm.not_converged_in_a_row or arm.costs.count for arm in knowledge.arms.values()
    )
    is_known = bool(costs.records) or costs_elsewhere(version, knowledge.hardware) is not None
    return is_known and not costs.is_seen and not has_ended


def _change_point(
    trial: Trial, ended: TrialEnded | LateResult, learnt: LearntCurve | None, beliefs: Beliefs
) -> ChangePoint | None:
    """Runs take more or fewer epochs than they used to, if what was known is partly forgotten with this one.

    The old reference is what it would have cost with as many epochs as were expected.
    """
    if learnt is None or learnt.epochs is None or learnt.epochs.kept == 1.0:
        return None
    return ChangePoint(
        version_number=trial.version_number,
        hardware_key=trial.hardware.key,
        trial_number=trial.trial_number,
        cost=ended.cost,
        old_reference=min(ended.cost * normal.exp(beliefs.of(trial.batch_size).epochs - math.log(trial.epoch)), _HUGE),
    )
