"""What the reports of a training add up to: the same for the trial that is recorded and for the training itself.

Of how much an epoch costs varies within a run, a sum over its reports is kept, and no report.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol, TypeVar

from bso.domain.cost import Profiled, Totals, cost_of, is_all_profiled, undistorted
from bso.domain.frozen_values import replace
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import JobSpec
from bso.domain.trial import EpochReport, Trial


class Progress(Protocol):
    """How far a training has come. ``cost`` [J] leaves out what profiling power limits added to time and energy."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def reports(self) -> int: ...
    @property
    def epoch(self) -> float: ...
    @property
    def energy_j(self) -> float: ...
    @property
    def is_energy_complete(self) -> bool: ...
    @property
    def profiled(self) -> Profiled: ...
    @property
    def metric(self) -> float | None: ...
    @property
    def nonfinite_metrics_in_a_row(self) -> int: ...
    @property
    def cost(self) -> float: ...
    @property
    def totals(self) -> Totals: ...


P = TypeVar("P", bound=Progress)


def progressed(before: P, report: EpochReport, *, cost: float) -> P:
    """The progress after one more report, whose cost is ``cost`` [J]. Energy that was not measured counts as before."""
    totals = totals_of(before, report)
    return replace(
        before,
        reports=before.reports + 1,
        epoch=totals.epoch,
        time_s=totals.time_s,
        energy_j=totals.energy_j,
        is_energy_complete=before.is_energy_complete and report.energy_j is not None,
        profiled=_profiled(before, report, totals),
        metric=report.metric,
        nonfinite_metrics_in_a_row=0 if math.isfinite(report.metric) else before.nonfinite_metrics_in_a_row + 1,
        cost=cost,
    )


def reported_cost(before: Progress, report: EpochReport, *, spec: JobSpec, hardware: HardwareKind) -> float:
    """The cost [J] of a training up to a report (NSDI '23, eq. 2)."""
    totals = totals_of(before, report)
    counted = undistorted(totals, _profiled(before, report, totals))
    return cost_of(
        energy_j=counted.energy_j, time_s=counted.time_s, eta_knob=spec.eta_knob, max_power_w=hardware.max_power_w
    )


def totals_of(before: Progress, report: EpochReport) -> Totals:
    """How far the training has come with a report."""
    energy_j = before.energy_j if report.energy_j is None else report.energy_j
    return Totals(epoch=report.epoch, time_s=report.time_s, energy_j=energy_j)


def _profiled(before: Progress, report: EpochReport, totals: Totals) -> Profiled:
    return before.profiled.plus(before.totals, totals) if report.is_profiling else before.profiled


_MOST = 2.0  # a report that costs three times as much as those before it says no more than that


def squares_after(trial: Trial, *, epoch: float, cost: float, is_profiling: bool) -> float:
    """The trial's sum of squared relative deviations of epoch costs, with one more report.

    ``epoch`` and ``cost`` [J] are those of the report, cumulative. Welford (1962): a deviation from the mean of n
    earlier reports counts n / (n + 1). Reports between which power limits were profiled do not count.
    """
    if is_profiling or trial.cost <= 0.0 or is_all_profiled(trial.epoch, trial.profiled):
        return trial.cost_squares
    before, after = _ordinary(trial.epoch, trial.profiled), _ordinary(epoch, trial.profiled)
    usual, more = trial.cost / trial.epoch, after - before
    if more <= 0.0:
        return trial.cost_squares
    own = (cost / epoch * after - usual * before) / more
    deviation = min(max(own / usual - 1.0, -1.0), _MOST)
    return trial.cost_squares + deviation * deviation * before / after


def reports_of(trial: Trial) -> float:
    """How many reports of a trial count, those apart between which power limits were profiled."""
    return trial.reports * _ordinary(trial.epoch, trial.profiled) / trial.epoch if trial.epoch else 0.0


def _ordinary(epoch: float, profiled: Profiled) -> float:
    """The progress [epochs] in which power limits were not profiled."""
    return epoch - profiled.epochs
