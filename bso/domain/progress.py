"""What the reports of a training add up to: the same for the trial that is recorded and for the training itself."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol, TypeVar

from bso.domain.cost import cost_of
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import JobSpec
from bso.domain.profiling import Profiled, Totals, undistorted
from bso.domain.replacing import replace
from bso.domain.trial import EpochReport


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
