"""The trainings in a job's log: how long they took, what an epoch of them took, and what they show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from statistics import fmean

from bso.domain.commands import PowerMeasurement
from bso.domain.cost import is_all_profiled
from bso.domain.errors import Rejected
from bso.domain.hardware import HardwareKind
from bso.domain.job import Job
from bso.domain.job_spec import JobSpec
from bso.domain.statistics import statistics_of
from bso.domain.trial import Outcome, Trial
from bso.replay.folding import Folding
from bso.simulator.problem import EpochPrice

_USUAL_VARIANCE, _USUAL_WEIGHT = 0.03, 4.0
"""Variance of ln epochs between trainings before any is known, and its weight in degrees of freedom: as ``curve``'s."""
_WITHIN = 1.96  # standard deviations on either side hold 95 %
MOST_MORE = 100
"""More trainings than this to tell two batch sizes apart are not worth a number."""


class NotRecorded(Rejected):
    """The record does not hold what is asked about; the message says what it does hold."""


class End(Enum):
    """What the end of a training says of the epochs to its target."""

    CONVERGED = "converged"  # it took exactly so many
    CENSORED = "censored"  # it ended before: it would have taken more
    FAILED = "failed"  # it would not have got there within max_epochs


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """One training that reported ``epochs`` (a float) in so many ``reports``.

    ``priced_epochs`` of them took ``time_s`` and ``energy_j`` on the hardware that is asked about, without power
    limits being profiled; 0 for trainings on other hardware, and where the energy was not measured throughout. A job
    whose eta_knob is 0 needs no energy: there ``is_energy_measured`` is False, and ``energy_j`` 0, where it was not.
    """

    batch_size: int
    end: End
    epochs: float
    reports: int
    priced_epochs: float = 0.0
    time_s: float = 0.0
    energy_j: float = 0.0
    is_energy_measured: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the trainings of a batch size show of its cost to the target, beside the cheapest batch size.

    ``cost`` [J] lies from ``low`` to ``high`` with 95 %; ``high`` is infinite where no training converged. The cost is
    known to be higher where ``is_higher``; else so many ``more`` trainings of the batch size would show it, if the
    costs are as they look. None: it is the cheapest one, or more than MOST_MORE would be needed.
    """

    cost: float
    low: float
    high: float
    is_higher: bool
    more: int | None


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is recorded of one version of a job, to be asked what would have been on one hardware kind.

    ``runs`` are those on any hardware, since epochs to the target do not depend on it; ``paid`` are all trials on this
    kind, in order. ``measurements`` are power profiles of this kind by batch size. ``infeasible`` batch sizes did not
    fit in its memory. ``earlier_trials`` counts trials of the job that ended before its log begins.
    """

    job_id: str
    version_number: int
    spec: JobSpec
    hardware: HardwareKind
    runs: tuple[RecordedRun, ...]
    paid: tuple[Trial, ...]
    measurements: Mapping[int, tuple[PowerMeasurement, ...]] = field(default_factory=dict)
    infeasible: frozenset[int] = frozenset()
    earlier_trials: int = 0

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The job's batch sizes and those that were tried, ascending."""
        return tuple(sorted({*self.spec.batch_sizes, *self.tried_batch_sizes}))

    @property
    def tried_batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes of which any trial is recorded, ascending."""
        return tuple(sorted({run.batch_size for run in self.runs} | {trial.batch_size for trial in self.paid}))

    @property
    def models(self) -> int:
        """Recorded recurrences that got their model on this hardware."""
        return sum(map(has_converged, self.paid))

    @property
    def paid_price(self) -> EpochPrice:
        """What all recorded trials on this hardware took."""
        return EpochPrice(
            time_s=sum(trial.time_s for trial in self.paid), energy_j=sum(trial.energy_j for trial in self.paid)
        )

    def cost(self, price: EpochPrice) -> float:
        """What a time and an energy cost [J] by the job's own eta_knob."""
        return price.cost(eta_knob=self.spec.eta_knob, max_power_w=self.hardware.max_power_w)

    def runs_of(self, batch_size: int) -> tuple[RecordedRun, ...]:
        """The trainings of one batch size."""
        return tuple(run for run in self.runs if run.batch_size == batch_size)

    def count(self, batch_size: int, end: End) -> int:
        """How many trainings of a batch size ended so."""
        return sum(run.end is end for run in self.runs_of(batch_size))

    def price(self, runs: Iterable[RecordedRun]) -> EpochPrice | None:
        """What an epoch of these trainings took in the mean, 0 J where no energy was measured; None: nobody knows."""
        priced = [run for run in runs if run.priced_epochs]
        if not priced:
            return None
        metered = sum(run.priced_epochs for run in priced if run.is_energy_measured)
        return EpochPrice(
            time_s=sum(run.time_s for run in priced) / sum(run.priced_epochs for run in priced),
            energy_j=sum(run.energy_j for run in priced) / metered if metered else 0.0,
        )

    def has_energy(self, batch_sizes: Iterable[int]) -> bool:
        """Whether it is known of each of these batch sizes what energy its epochs take on this hardware."""
        return all(
            any(run.priced_epochs and run.is_energy_measured for run in self.runs_of(size))
            for size in batch_sizes
            if size not in self.infeasible
        )

    def why_unknown(self, batch_size: int) -> str | None:
        """Why a batch size cannot be simulated; None: it can."""
        runs = self.runs_of(batch_size)
        if batch_size not in self.tried_batch_sizes:
            return "never tried"
        if batch_size in self.infeasible:
            return None
        if not runs:
            return "no epoch reported"
        if self.price(runs) is None:
            return f"no epoch {'' if self.spec.eta_knob == 0.0 else 'with its energy '}measured on this hardware"
        if any(run.end is not End.CENSORED for run in runs) or self._is_beyond_the_cheapest(batch_size):
            return None
        return "stopped before it was known to cost more than others"

    @property
    def known_batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes that can be simulated, ascending."""
        return tuple(size for size in self.tried_batch_sizes if self.why_unknown(size) is None)

    @cached_property
    def spread(self) -> float:
        """The standard deviation of ln epochs between trainings of one batch size, pooled over all batch sizes."""
        squares, freedom = _USUAL_WEIGHT * _USUAL_VARIANCE, _USUAL_WEIGHT
        for size in self.tried_batch_sizes:
            found = statistics_of(math.log(run.epochs) for run in self._converged(size))
            squares, freedom = squares + found.squares, freedom + max(0, found.count - 1)
        return math.sqrt(squares / freedom)

    @cached_property
    def cheapest(self) -> int | None:
        """The batch size whose converged trainings cost least in the mean; None where there is none with a price."""
        costs = {size: cost for size in self.tried_batch_sizes if (cost := self._mean_cost(size)) is not None}
        return min(costs, key=costs.__getitem__, default=None)

    def standing(self, batch_size: int) -> Standing | None:
        """What is known of a batch size; None of one of which no cost to the target is known."""
        if self.cheapest is None or self.why_unknown(batch_size) or batch_size in self.infeasible:
            return None
        cost, count = self._mean_cost(batch_size), self.count(batch_size, End.CONVERGED)
        if cost is None:
            least = self._cost(batch_size, max(run.epochs for run in self.runs_of(batch_size)))
            return Standing(cost=math.inf, low=least, high=math.inf, is_higher=True, more=None)
        half = math.exp(_WITHIN * self.spread / math.sqrt(count))
        least, others = self._mean_cost(self.cheapest) or 0.0, self.count(self.cheapest, End.CONVERGED)
        # Two means differ visibly where |ln ratio| > 1.96 s sqrt(1/n + 1/m); solved for n.
        visible = (math.log(cost / least) / (_WITHIN * self.spread)) ** 2 if least else 0.0
        needed = 1.0 / (visible - 1.0 / others) if visible > 1.0 / others else math.inf
        is_higher = batch_size != self.cheapest and count >= needed
        more = None if is_higher or needed - count > MOST_MORE else math.ceil(needed - count)
        return Standing(cost=cost, low=cost / half, high=cost * half, is_higher=is_higher, more=more)

    def _converged(self, batch_size: int) -> list[RecordedRun]:
        return [run for run in self.runs_of(batch_size) if run.end is End.CONVERGED]

    def _mean_cost(self, batch_size: int) -> float | None:
        runs = self._converged(batch_size)
        if not runs or self.price(self.runs_of(batch_size)) is None:
            return None
        return self._cost(batch_size, fmean(run.epochs for run in runs))

    def _cost(self, batch_size: int, epochs: float) -> float:
        price = self.price(self.runs_of(batch_size))
        assert price is not None, "known batch sizes have a price"
        return self.cost(price.scaled(epochs))

    def _is_beyond_the_cheapest(self, batch_size: int) -> bool:
        """Whether its longest training already cost more than one of the cheapest batch size does to the target."""
        longest = max(run.epochs for run in self.runs_of(batch_size))
        least = None if self.cheapest is None else self._mean_cost(self.cheapest)
        return least is not None and self._cost(batch_size, longest) >= least


def has_converged(trial: Trial) -> bool:
    """Whether a training reached its target, be it known late."""
    return (trial.late_outcome or trial.outcome) is Outcome.CONVERGED


def record_of(folding: Folding, *, version_number: int | None = None, hardware: str | None = None) -> Record:
    """What a folded log records of a job; of its current version and the best known hardware, unless said otherwise.

    ``hardware`` is the key of a kind, or a part of its description. Raises NotRecorded.
    """
    job = folding.job
    if not job.is_registered:
        raise NotRecorded(f"job {job.job_id} is deleted")
    number = job.current_version if version_number is None else version_number
    if number not in job.versions:
        versions = ", ".join(map(str, sorted(job.versions)))
        raise NotRecorded(f"job {job.job_id} has no version {number}; it has {versions}")
    of_version = [trial for _, trial in sorted(folding.trials.items()) if trial.version_number == number]
    if not of_version:
        raise NotRecorded(f"no trial of {_version_of(job, number)} is recorded{_elsewhere(folding, number)}")
    kind = _hardware(of_version, hardware)
    spec = job.versions[number].spec
    paid = tuple(trial for trial in of_version if trial.hardware.key == kind.key)
    too_large = {trial.batch_size for trial in paid if trial.outcome is Outcome.INFEASIBLE}
    profiles = [kept.profile for kept in folding.profiles.values() if kept.profile.hardware.key == kind.key]
    return Record(
        job_id=job.job_id,
        version_number=number,
        spec=spec,
        hardware=kind,
        runs=tuple(_run(trial, spec, kind) for trial in of_version if trial.epoch),
        paid=paid,
        measurements={profile.batch_size: profile.measurements for profile in profiles},
        infeasible=frozenset(too_large - {trial.batch_size for trial in paid if has_converged(trial)}),
        earlier_trials=folding.trials_before,
    )


def _version_of(job: Job, number: int) -> str:
    return f"version {number} of job {job.job_id}" if len(job.versions) > 1 else f"job {job.job_id}"


def _elsewhere(folding: Folding, number: int) -> str:
    others = sorted(
        {trial.version_number for trial in folding.trials.values()} & folding.job.versions.keys() - {number}
    )
    return f"; there are trials of version {', '.join(map(str, others))}" if others else ""


def _hardware(trials: Sequence[Trial], wanted: str | None) -> HardwareKind:
    """The kind that is asked for, else that of the most converged trials, and of these the one used last."""
    kinds = {trial.hardware.key: trial.hardware for trial in trials}
    if wanted is None:
        order = {trial.hardware.key: trial.trial_number for trial in trials}
        return max(kinds.values(), key=lambda kind: (_models_on(trials, kind), order[kind.key]))
    found = [kind for key, kind in kinds.items() if key == wanted or wanted.lower() in kind.describe().lower()]
    if len(found) == 1:
        return found[0]
    listed = "; ".join(f"{kind.key}: {kind.describe()}" for kind in found or kinds.values())
    which = "is several kinds" if found else "is none"
    raise NotRecorded(f"hardware {wanted!r} {which} of those that trials of the job ran on: {listed}")


def _models_on(trials: Iterable[Trial], kind: HardwareKind) -> int:
    return sum(has_converged(trial) for trial in trials if trial.hardware.key == kind.key)


def _run(trial: Trial, spec: JobSpec, kind: HardwareKind) -> RecordedRun:
    end = _end(trial, spec)
    is_priced = (
        trial.hardware.key == kind.key
        and (trial.is_energy_complete or spec.eta_knob == 0.0)
        and not is_all_profiled(trial.epoch, trial.profiled)
        and trial.time_s > trial.profiled.time_s
    )
    is_metered = is_priced and trial.is_energy_complete
    return RecordedRun(
        batch_size=trial.batch_size,
        end=end,
        epochs=spec.max_epochs if end is End.FAILED else trial.epoch,
        reports=max(1, trial.reports),
        priced_epochs=trial.epoch - trial.profiled.epochs if is_priced else 0.0,
        time_s=trial.time_s - trial.profiled.time_s if is_priced else 0.0,
        energy_j=max(0.0, trial.energy_j - trial.profiled.energy_j) if is_metered else 0.0,
        is_energy_measured=trial.is_energy_complete,
    )


def _end(trial: Trial, spec: JobSpec) -> End:
    """A training that is under way, or was ended from outside, needs more epochs than it had, as a stopped one does."""
    if has_converged(trial):
        before = trial.epoch - trial.epoch / max(1, trial.reports)
        return End.FAILED if before >= spec.max_epochs else End.CONVERGED  # the limit was higher then
    gave_up = (trial.late_outcome or trial.outcome) is Outcome.NOT_CONVERGED
    return End.FAILED if gave_up or trial.epoch >= spec.max_epochs else End.CENSORED
