"""What matters for one trial of a job: what is believed, what may be spent on it, and what it says itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bso.domain.events import LateResult, TrialEnded
from bso.domain.frozen_values import remembered, replace
from bso.domain.job import Job, JobVersion, Recurrence
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import Knowledge
from bso.domain.trial import DIVERGED, OUT_OF_MEMORY, Outcome, Trial, reason_code
from bso.policies.curve import cost_observations, epoch_observations, normal, stops
from bso.policies.curve.beliefs import Beliefs, beliefs_of
from bso.policies.curve.cost_records import EpochCostKnowledge, LearntEpochCost
from bso.policies.curve.epoch_records import EpochKnowledge, LearntEpochs
from bso.policies.curve.memory import LearntCurve, Uncounted, epoch_costs_on, epochs_of
from bso.policies.curve.standing import standing_of
from bso.policies.curve.validation import Forecast, forecast

_FAILED = LearntEpochs(ln_epochs=None, variance=None, failed=1.0)
_CENSORED = frozenset({Outcome.NOT_CONVERGED, Outcome.COST_EXCEEDED, Outcome.INTERRUPTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What matters for one trial. ``running_cost``: what it shows of epoch costs; None: nothing yet.

    ``patience``: why the bound was raised; None: it was not.

    ``incumbent`` is None, too, while nothing can be compared with it: before any epoch was paid for on the hardware
    kind, this trial's included, and before a run of the version has converged, where all else is inherited.
    """

    spec: JobSpec
    beliefs: Beliefs
    epochs: EpochKnowledge
    costs: EpochCostKnowledge
    incumbent: int | None
    aborts: int
    recurrences: int
    is_second_look: bool
    bound: float | None
    running_cost: cost_observations.RunningCost | None
    patience: str | None = None

    @property
    def rise(self) -> float:
        """Ln of the factor by which the epoch costs of all batch sizes have risen, as this trial shows."""
        return 0.0 if self.running_cost is None else self.running_cost.rise

    def why_to_stop(self, trial: Trial) -> str | None:
        """Why an exploration is not worth going on with."""
        if self.incumbent is None or trial.batch_size == self.incumbent or self.running_cost is None:
            return None
        if self.spec.beta_knob is None:
            return None
        underway = self._underway(trial, self.running_cost)
        return stops.why_to_stop(self.beliefs, underway, self.incumbent, recurrences=self.recurrences, rise=self.rise)

    def with_bound(self, trial: Trial, bound: float | None) -> View:
        """The view with this bound, raised by the cost of a fresh run of the incumbent where less will do.

        That is looked at only where the next report may be above the bound.
        """
        own, incumbent = self.running_cost, self.incumbent
        if bound is None or own is None or incumbent is None or trial.cost + trial.cost / trial.reports <= bound:
            return replace(self, bound=bound)
        underway = self._underway(trial, own)
        if not stops.is_nearly_there(self.beliefs, underway, incumbent, rise=self.rise, bound=bound):
            return replace(self, bound=bound)
        raised = trial.cost + normal.exp(self.beliefs.of(incumbent).cost + self.rise)
        curve = "" if underway.forecast is None else f"; {underway.forecast.words}"
        why = f"the target is not reached yet{curve}; going on is cheaper than a fresh run of {incumbent}"
        return replace(self, bound=max(bound, raised), patience=why)

    def learnt(self, trial: Trial, ended: TrialEnded | LateResult) -> LearntCurve | None:
        """What the end of the trial says; None: nothing."""
        if trial.batch_size not in self.beliefs.sizes:
            return None
        if not trial.reports:
            return self._learnt_without_epochs(trial, ended)
        epochs = self._learnt_epochs(trial, ended)
        is_measured = trial.has_measured_cost(self.spec) and ended.cost > 0.0
        has_cost = is_measured and ended.outcome is not Outcome.CANCELLED
        own = self._learnt_cost(trial) if has_cost else None
        return None if epochs is None and own is None else LearntCurve(epochs=epochs, epoch_cost=own)

    def _learnt_without_epochs(self, trial: Trial, ended: TrialEnded | LateResult) -> LearntCurve | None:
        """What a run without a report says; one that was taken over from elsewhere may have a result all the same."""
        if _cannot_converge(ended) or (ended.outcome is Outcome.NOT_CONVERGED and ended.cost > 0.0):
            return LearntCurve(epochs=_FAILED, epoch_cost=None)
        if ended.learnt_cost is None:
            return None
        belief = self.beliefs.of(trial.batch_size)
        uncounted = Uncounted(
            ln_epochs=belief.epochs,
            ln_epoch_cost=math.log(ended.learnt_cost) - belief.epochs,
            variance=None if ended.outcome is Outcome.CONVERGED else belief.noise,
        )
        return LearntCurve(epochs=None, epoch_cost=None, uncounted=uncounted)

    def _underway(self, trial: Trial, own: cost_observations.RunningCost) -> stops.Underway:
        return stops.Underway(
            batch_size=trial.batch_size,
            epochs=trial.epoch,
            interval=_interval(trial),
            cost=trial.cost,
            epoch_cost=own.own,
            usual_cost=own.usual,
            max_epochs=self.spec.max_epochs,
            is_second_look=self.is_second_look,
            forecast=self._forecast(trial),
        )

    def _forecast(self, trial: Trial) -> Forecast | None:
        noise = self.beliefs.of(trial.batch_size).noise
        return forecast(self.epochs.landmarks, self.epochs.approach(trial.trial_number), noise)

    def _learnt_cost(self, trial: Trial) -> LearntEpochCost | None:
        seen = _cost_seen(self.beliefs, self.costs, trial)
        if seen is None:
            return None
        ratio = cost_observations.profiling_ratio(trial)
        return cost_observations.learnt_cost(self.beliefs, self.costs, trial.batch_size, seen, profiling_ratio=ratio)

    def _learnt_epochs(self, trial: Trial, ended: TrialEnded | LateResult) -> LearntEpochs | None:
        if ended.outcome is Outcome.CONVERGED:
            size, approach = trial.batch_size, self.epochs.approach(trial.trial_number)
            return epoch_observations.converged(self.beliefs, self.epochs.record(size), size, trial.epoch, approach)
        if _cannot_converge(ended):
            return _FAILED
        if ended.outcome not in _CENSORED:
            return None
        return epoch_observations.censored(
            self.beliefs,
            self.epochs.record(trial.batch_size),
            trial.batch_size,
            trial.epoch,
            _interval(trial),
            may_have_failed=ended.outcome is not Outcome.INTERRUPTED,
            has_incumbent=self.incumbent is not None,
            forecast=self._forecast(trial),
        )


def view_of(job: Job, trial: Trial) -> View:
    """The view of a trial after its latest report."""
    version, recurrence = job.versions[trial.version_number], job.recurrences.get(trial.recurrence_id)
    return _view(version, job.knowledge_of(trial), recurrence, trial, job.last_recurrence_number)


@remembered  # a report is judged by it, its trial's end is learnt with it, and the next report has its bound
def _view(
    version: JobVersion, knowledge: Knowledge, recurrence: Recurrence | None, trial: Trial, last_recurrence: int
) -> View:
    spec, costs, epochs = version.spec, epoch_costs_on(knowledge), epochs_of(version)
    beliefs = beliefs_of(version, knowledge)
    seen = _cost_seen(beliefs, costs, trial)
    is_comparable = not epochs.is_unproven and (costs.is_seen or seen is not None)
    incumbent = standing_of(version, knowledge, recurrence).incumbent(beliefs) if is_comparable else None
    view = View(
        spec=spec,
        beliefs=beliefs,
        epochs=epochs,
        costs=costs,
        incumbent=incumbent,
        aborts=recurrence.aborts if recurrence is not None else 0,
        recurrences=last_recurrence if recurrence is None else recurrence.recurrence_number - 1,
        is_second_look=trial.trial_number in epochs.second_looks,
        bound=None,
        running_cost=None if seen is None else cost_observations.running_cost(beliefs, costs, trial.batch_size, seen),
    )
    return view.with_bound(trial, _bound(view, trial))


def _bound(view: View, trial: Trial) -> float | None:
    spec = view.spec
    if not spec.early_stopping:
        return None
    if view.incumbent is None:
        return spec.cost_budget
    if spec.beta_knob is None:
        return None
    bound = stops.bound_of(
        view.beliefs,
        trial.batch_size,
        view.incumbent,
        beta=spec.beta_knob,
        aborts=view.aborts,
        rise=view.rise,
    )
    return bound if math.isfinite(bound) else None


def _cost_seen(beliefs: Beliefs, costs: EpochCostKnowledge, trial: Trial) -> cost_observations.EpochCostSeen | None:
    """What the trial says of epoch costs so far; None: nothing, or the job never had its batch size."""
    if not trial.reports or trial.cost <= 0.0 or trial.batch_size not in beliefs.sizes:
        return None
    return cost_observations.epoch_cost_seen(trial, costs)


def _interval(trial: Trial) -> float:
    """The progress between two evaluations, in epochs."""
    return trial.epoch / trial.reports if trial.reports else 1.0


def _cannot_converge(ended: TrialEnded | LateResult) -> bool:
    """Whether a trial has shown that its batch size does not converge, whatever time it is given."""
    code = reason_code(ended.reason)
    if ended.outcome is Outcome.INFEASIBLE:
        return code != OUT_OF_MEMORY  # what memory excludes is known elsewhere
    return ended.outcome is Outcome.NOT_CONVERGED and code == DIVERGED
