"""A job's recorded trainings: how long they took, what an epoch of them took, and what they show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from statistics import fmean

from bso.domain.commands import PowerMeasurement
from bso.domain.errors import Rejected
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import JobSpec
from bso.domain.trial import Outcome, Trial
from bso.replay.what_if.estimates import CensoredMean, Spread, deviations_of_95, mean_with_censored
from bso.simulator.problem import EpochPrice

_USUAL_VARIANCE, _USUAL_WEIGHT = 0.03, 4.0
"""Variance of ln epochs between trainings before any is known, and its weight in degrees of freedom: as ``curve``'s."""
_USUAL_COST_VARIANCE, _USUAL_COST_WEIGHT = 0.01, 1.0
"""The same of ln of what an epoch costs."""
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

    @property
    def price(self) -> EpochPrice:
        """What an epoch of it took; ``priced_epochs`` must not be 0."""
        return EpochPrice(time_s=self.time_s / self.priced_epochs, energy_j=self.energy_j / self.priced_epochs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRecord:
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
        """What an epoch of these trainings took in the mean, 0 J where no energy was measured; None: nobody knows.

        Each training counts alike, however long it was: expensive ones are stopped early.
        """
        priced = [run for run in runs if run.priced_epochs]
        if not priced:
            return None
        metered = [run.price.energy_j for run in priced if run.is_energy_measured]
        return EpochPrice(time_s=fmean(run.price.time_s for run in priced), energy_j=fmean(metered) if metered else 0.0)

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
    def epochs_spread(self) -> Spread:
        """Of ln epochs between converged trainings of one batch size, pooled over all batch sizes."""
        converged = [run for run in self.runs if run.end is End.CONVERGED]
        found = Spread.within(
            [math.log(run.epochs) for run in converged if run.batch_size == size] for size in self.tried_batch_sizes
        )
        return found.with_guess(_USUAL_VARIANCE, _USUAL_WEIGHT)

    @cached_property
    def seen_cost_spread(self) -> Spread:
        """Of ln of what an epoch costs between trainings of one batch size, stopped ones included, pooled likewise."""
        priced = [run for run in self.runs if run.priced_epochs and self.cost(run.price) > 0.0]
        return Spread.within(
            [math.log(self.cost(run.price)) for run in priced if run.batch_size == size]
            for size in self.tried_batch_sizes
        )

    @cached_property
    def cost_spread(self) -> Spread:
        """The same with what is usual, before any is known."""
        return self.seen_cost_spread.with_guess(_USUAL_COST_VARIANCE, _USUAL_COST_WEIGHT)

    @cached_property
    def cheapest(self) -> int | None:
        """The batch size whose trainings seem to cost least; None where none that has converged has a price."""
        costs = {size: cost for size in self.tried_batch_sizes if (cost := self._mean_cost(size)) is not None}
        return min(costs, key=costs.__getitem__, default=None)

    def standing(self, batch_size: int) -> SizeRecord | None:
        """What is known of a batch size; None of one of which no cost to the target is known."""
        if self.cheapest is None or self.why_unknown(batch_size) or batch_size in self.infeasible:
            return None
        cost, factor = self._mean_cost(batch_size), math.exp(self._half(*self._variances(batch_size)))
        if cost is None:
            longest = self._cost(batch_size, max(run.epochs for run in self.runs_of(batch_size)))
            is_higher = self._is_visible(batch_size, longest)
            return SizeRecord(cost=math.inf, low=longest / factor, high=math.inf, is_higher=is_higher, more=None)
        needed = None
        if batch_size != self.cheapest:
            enough = (more for more in range(MOST_MORE + 1) if self._is_visible(batch_size, cost, more=more))
            needed = next(enough, None)
        return SizeRecord(cost=cost, low=cost / factor, high=cost * factor, is_higher=needed == 0, more=needed or None)

    def _is_visible(self, batch_size: int, cost: float, *, more: int = 0) -> bool:
        """Whether a batch size is known to cost more than the cheapest one, if so many more trainings show ``cost``."""
        assert self.cheapest is not None, "a batch size is compared with the cheapest one"
        least = self._mean_cost(self.cheapest)
        if not cost or not least:
            return False
        own, other = self._variances(batch_size, more=more), self._variances(self.cheapest)
        return math.log(cost / least) > self._half(own[0] + other[0], own[1] + other[1])

    def _half(self, of_epochs: float, of_cost: float) -> float:
        """Half the interval that holds ln of a mean cost with 95 %, from the variances of its parts.

        Its degrees of freedom are those of Welch (1947): nearly those of the larger part alone.
        """
        total = of_epochs + of_cost
        if not total:
            return 0.0
        freedom = total**2 / (of_epochs**2 / self.epochs_spread.freedom + of_cost**2 / self.cost_spread.freedom)
        return deviations_of_95(freedom) * math.sqrt(total)

    def _variances(self, batch_size: int, *, more: int = 0) -> tuple[float, float]:
        """Of the means of ln epochs and of ln epoch cost, if there were so many more trainings.

        Where none has converged, the longest of those that were stopped shows it.
        """
        found = self._ln_epochs.get(batch_size)
        converged = 1.0 if found is None else found.weight
        priced = sum(run.priced_epochs > 0.0 for run in self.runs_of(batch_size))
        return self.epochs_spread.variance / (converged + more), self.cost_spread.variance / (priced + more)

    @cached_property
    def _ln_epochs(self) -> dict[int, CensoredMean]:
        """The mean of ln epochs of each batch size that has converged: stopped trainings would have taken more."""
        ends = {
            size: [
                [math.log(run.epochs) for run in self.runs_of(size) if run.end is end]
                for end in (End.CONVERGED, End.CENSORED)
            ]
            for size in self.tried_batch_sizes
        }
        deviation = self.epochs_spread.deviation
        return {
            size: mean_with_censored(converged, stopped, deviation)
            for size, (converged, stopped) in ends.items()
            if converged
        }

    def _mean_cost(self, batch_size: int) -> float | None:
        """Of trainings that converge: the mean of those that did, raised by what stopped ones say of their epochs."""
        found, runs = self._ln_epochs.get(batch_size), self.runs_of(batch_size)
        if found is None or self.price(runs) is None:
            return None
        epochs = [run.epochs for run in runs if run.end is End.CONVERGED]
        return self._cost(batch_size, fmean(epochs) * math.exp(found.mean - fmean(map(math.log, epochs))))

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
