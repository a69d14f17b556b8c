"""What matters for one running trial: what is believed, what may be spent on it, and what it says itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bso.domain.frozen_values import remembered, remembered_by, replace
from bso.domain.job import Job, JobVersion, Recurrence
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import Knowledge
from bso.domain.progress import is_all_profiled, reports_of
from bso.domain.trial import Trial
from bso.policies.curve import normal, stops
from bso.policies.curve.beliefs import Belief, Comparison, beliefs_of
from bso.policies.curve.cost_records import EpochCostKnowledge
from bso.policies.curve.epoch_records import EpochKnowledge
from bso.policies.curve.memory import epoch_costs_on, epochs_of
from bso.policies.curve.standing import standing_of
from bso.policies.curve.validation import Forecast, forecast, known_approach

_PROFILED_NOISE, _UNKNOWN_PROFILED_NOISE = 0.05**2, 0.15**2
_FAR = 3.0  # standard deviations: a surprise beyond all noise
_CHANGES = 0.02  # the share of runs with which all costs change


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCostSeen:
    """ln of what an epoch of a trial cost [J]; where power limits were profiled in all of them, without that.

    ``noise`` is the variance that this, and so few reports, add to the one between runs. ``squares`` and ``freedom``
    are those of epoch costs between its reports, ``interval`` is the progress between two of them, in epochs.
    """

    value: float
    noise: float
    squares: float = 0.0
    freedom: float = 0.0
    interval: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCost:
    """What a running trial shows, in ln J: what its ``own`` epochs cost, and those of its batch size usually.

    ``rise`` is by how much the costs of all batch sizes seem to have risen.
    """

    own: float
    usual: float
    rise: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCosts:
    """What was known before of epoch costs on the hardware kind of a trial.

    ``is_seen``: whether any was paid for; ``is_size_known``: whether one of its size is known. ``within``: squares
    and degrees of freedom of epoch costs between reports. ``spike_rate``: the share of runs that are spikes.
    ``profiling_ratio``: of an epoch in which power limits were profiled, to an ordinary one; None: none was seen.
    """

    is_seen: bool
    is_size_known: bool
    within: tuple[float, float]
    spike_rate: float
    profiling_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the reports of a trial are judged by, and change none of. Beliefs are a thousand times as large.

    ``own``: what is believed of its batch size; None: the job never had it. ``best``: of the incumbent; None: there is
    none, or no run of the version has converged, where all else is inherited. ``compared``: both.
    """

    own: Belief | None
    incumbent: int | None
    best: Belief | None
    compared: Comparison | None
    costs: KnownCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What matters for one trial. ``running_cost``: what it shows of epoch costs; None: nothing yet.

    ``patience``: why the bound was raised; None: it was not.
    """

    spec: JobSpec
    epochs: EpochKnowledge
    costs: EpochCostKnowledge
    ground: Ground
    aborts: int
    recurrences: int
    is_second_look: bool
    seen: EpochCostSeen | None
    running_cost: RunningCost | None
    bound: float | None = None
    patience: str | None = None

    @property
    def has_incumbent(self) -> bool:
        """Whether there is an incumbent to compare the trial with: some epoch was paid for, this trial's or another."""
        return self.ground.best is not None and (self.ground.costs.is_seen or self.seen is not None)

    @property
    def rise(self) -> float:
        """Ln of the factor by which the epoch costs of all batch sizes have risen, as this trial shows."""
        return 0.0 if self.running_cost is None else self.running_cost.rise

    def why_to_stop(self, trial: Trial) -> str | None:
        """Why an exploration is not worth going on with."""
        compared, own = self.ground.compared, self.running_cost
        if compared is None or own is None or compared.batch_size == compared.incumbent or self.spec.beta_knob is None:
            return None
        underway = self._underway(trial, compared.own, own)
        return stops.why_to_stop(compared, underway, recurrences=self.recurrences, rise=self.rise)

    def with_bound(self, trial: Trial) -> View:
        """The view with the bound, raised by the cost of a fresh run of the incumbent where less will do.

        That is looked at only where the next report may be above the bound.
        """
        bound, compared, own = self._bound(trial), self.ground.compared, self.running_cost
        if bound is None or own is None or compared is None or trial.cost + trial.cost / trial.reports <= bound:
            return replace(self, bound=bound)
        underway = self._underway(trial, compared.own, own)
        if not stops.is_nearly_there(compared, underway, rise=self.rise, bound=bound):
            return replace(self, bound=bound)
        raised = trial.cost + normal.exp(compared.best.cost + self.rise)
        curve = "" if underway.forecast is None else f"; {underway.forecast.words}"
        why = f"the target is not reached yet{curve}; going on is cheaper than a fresh run of {compared.incumbent}"
        return replace(self, bound=max(bound, raised), patience=why)

    def forecast(self, trial: Trial, own: Belief) -> Forecast | None:
        """What the validation curve of the trial says of its epochs; None: nothing."""
        return forecast(self.epochs.landmarks, known_approach(trial.trial_number, self.epochs.approaches), own.noise)

    def _bound(self, trial: Trial) -> float | None:
        if not self.spec.early_stopping:
            return None
        best = self.ground.best if self.has_incumbent else None
        if best is None:
            return self.spec.cost_budget
        if self.spec.beta_knob is None:
            return None
        aborts = self.aborts if trial.batch_size == self.ground.incumbent else 0
        bound = stops.bound_of(best, beta=self.spec.beta_knob, aborts=aborts, rise=self.rise)
        return bound if math.isfinite(bound) else None

    def _underway(self, trial: Trial, own: Belief, shown: RunningCost) -> stops.Underway:
        return stops.Underway(
            epochs=trial.epoch,
            interval=interval_of(trial),
            cost=trial.cost,
            epoch_cost=shown.own,
            usual_cost=shown.usual,
            max_epochs=self.spec.max_epochs,
            is_second_look=self.is_second_look,
            forecast=self.forecast(trial, own),
        )


def view_of(job: Job, trial: Trial) -> View:
    """The view of a trial after its latest report."""
    version, recurrence = job.versions[trial.version_number], job.recurrences.get(trial.recurrence_id)
    return _view(version, job.knowledge_of(trial), recurrence, trial, job.last_recurrence_number)


@remembered  # a report is judged by it, its trial's end is learnt with it, and the next report has its bound
def _view(
    version: JobVersion, knowledge: Knowledge, recurrence: Recurrence | None, trial: Trial, last_recurrence: int
) -> View:
    epochs = epochs_of(version)
    ground = _ground(version, knowledge, recurrence, trial.batch_size)
    own = ground.own
    seen = epoch_cost_seen(trial, ground.costs) if own is not None and trial.reports and trial.cost > 0.0 else None
    view = View(
        spec=version.spec,
        epochs=epochs,
        costs=epoch_costs_on(knowledge),
        ground=ground,
        aborts=recurrence.aborts if recurrence is not None else 0,
        recurrences=last_recurrence if recurrence is None else recurrence.recurrence_number - 1,
        is_second_look=trial.trial_number in epochs.second_looks,
        seen=seen,
        running_cost=None if own is None or seen is None else running_cost(own, ground.costs, seen),
    )
    return view.with_bound(trial)


def _going_by(
    version: JobVersion, knowledge: Knowledge, recurrence: Recurrence | None, batch_size: int
) -> tuple[object, ...]:
    epochs = epochs_of(version)
    return version.spec, version.knowledge, epochs.records, epochs.is_inherited, knowledge, recurrence, batch_size


@remembered_by(_going_by)
def _ground(version: JobVersion, knowledge: Knowledge, recurrence: Recurrence | None, batch_size: int) -> Ground:
    beliefs = beliefs_of(version, knowledge)
    is_unproven, is_known = epochs_of(version).is_unproven, batch_size in beliefs.sizes
    incumbent = None if is_unproven else standing_of(version, knowledge, recurrence).incumbent(beliefs)
    return Ground(
        own=beliefs.of(batch_size) if is_known else None,
        incumbent=incumbent,
        best=None if incumbent is None else beliefs.of(incumbent),
        compared=None if incumbent is None or not is_known else beliefs.compared(batch_size, incumbent),
        costs=known_costs(epoch_costs_on(knowledge), batch_size),
    )


def known_costs(costs: EpochCostKnowledge, batch_size: int) -> KnownCosts:
    """What is known of epoch costs when a trial of this batch size reports."""
    return KnownCosts(
        is_seen=costs.is_seen,
        is_size_known=costs.record(batch_size).is_known,
        within=costs.within,
        spike_rate=costs.spike_rate,
        profiling_ratio=costs.profiling_ratio if costs.profiled else None,
    )


def epoch_cost_seen(trial: Trial, known: KnownCosts) -> EpochCostSeen:
    """What a trial that has reported a cost says of its epoch cost."""
    value, interval = math.log(trial.cost) - math.log(trial.epoch), trial.epoch / trial.reports
    if not is_all_profiled(trial.epoch, trial.profiled):
        reports, squares = max(reports_of(trial), 1.0), trial.cost_squares
        within_squares, within_freedom = known.within
        noise = (within_squares + squares) / (within_freedom + reports - 1.0) / reports
        return EpochCostSeen(value=value, noise=noise, squares=squares, freedom=reports - 1.0, interval=interval)
    if known.profiling_ratio is None:
        return EpochCostSeen(value=value, noise=_UNKNOWN_PROFILED_NOISE, interval=interval)
    return EpochCostSeen(value=value - math.log(known.profiling_ratio), noise=_PROFILED_NOISE, interval=interval)


def running_cost(belief: Belief, known: KnownCosts, seen: EpochCostSeen) -> RunningCost:
    """What a running trial shows of costs.

    Where costs of its batch size are known, a surprise beyond all noise is taken for one of all batch sizes, as far as
    that is likelier than a spike. Where no epoch was paid for on the hardware kind, all is: their level is not known.
    """
    mean, variance, between_runs = belief.epoch_cost, belief.epoch_cost_variance, belief.cost_noise
    total = variance + between_runs + seen.noise
    surprise, rise = seen.value - mean, 0.0
    if not known.is_seen:
        rise = surprise
    elif known.is_size_known and surprise**2 > _FAR**2 * total:
        rise = (
            surprise**3 / (surprise**2 + total) * _CHANGES / (_CHANGES + (known.spike_rate if surprise > 0.0 else 0.0))
        )
    left = surprise - rise
    return RunningCost(
        own=mean + rise + left * (variance + between_runs) / total,
        usual=mean + rise + left * variance / total,
        rise=rise,
    )


def interval_of(trial: Trial) -> float:
    """The progress between two evaluations, in epochs."""
    return trial.epoch / trial.reports if trial.reports else 1.0
