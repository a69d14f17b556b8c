"""What the reports of a training add up to, what that costs, and when it ends the training (NSDI '23, section 4.4).

It is the same for the trial that is recorded and for the training itself. Of how much an epoch costs varies within a
run, a sum over its reports is kept, and no report. Profiling power limits slows a training down and changes its energy:
the cost leaves that out.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from bso.domain.frozen_values import replace
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import JobSpec
from bso.domain.quantities import joules
from bso.domain.trial import DIVERGED, Outcome, Profiled, Totals, Trial

NONFINITE_METRICS_BEFORE_END = 2
_MOST_WHOLE = 2**24  # every whole number up to it is a float32
MOST_REPORTED = 1e18
"""The largest progress [epochs], time [s] or energy [J] that is believed."""
_NOTHING_LEFT = 1e-9  # of all progress: what remains of the difference of two equal sums of floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a trial goes on (outcome None) or how it ends, and why."""

    outcome: Outcome | None
    reason: str


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


class Report(Protocol):
    """What a training says after an epoch (EpochReport), or what was recorded of that."""

    @property
    def epoch(self) -> float: ...
    @property
    def time_s(self) -> float: ...
    @property
    def energy_j(self) -> float | None: ...
    @property
    def metric(self) -> float: ...
    @property
    def is_profiling(self) -> bool: ...


P = TypeVar("P", bound=Progress)


def progressed(before: P, report: Report, *, cost: float) -> P:
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


def cost_of(*, energy_j: float, time_s: float, eta_knob: float, max_power_w: float) -> float:
    """Energy and time as one cost [J], ``eta * energy + (1 - eta) * max_power * time`` (NSDI '23, eq. 2).

    ``eta_knob`` 1 counts energy alone, 0 counts time alone. ``max_power_w`` is that of all devices together.
    """
    return eta_knob * energy_j + (1.0 - eta_knob) * max_power_w * time_s


def is_all_profiled(epoch: float, profiled: Profiled) -> bool:
    """Whether power limits were profiled in all of a training: its cost without is not known yet."""
    return profiled.epochs > 0 and epoch - profiled.epochs <= _NOTHING_LEFT * epoch


def undistorted(reached: Totals, profiled: Profiled) -> Totals:
    """What the training would have taken without profiling: its profiled epochs count like the mean of the others.

    While there are no others the totals stay as they are.
    """
    if not profiled.epochs or is_all_profiled(reached.epoch, profiled):
        return reached
    share = reached.epoch / (reached.epoch - profiled.epochs)
    return Totals(
        epoch=reached.epoch,
        time_s=max(0.0, reached.time_s - profiled.time_s) * share,
        energy_j=max(0.0, reached.energy_j - profiled.energy_j) * share,
    )


def reported_cost(before: Progress, report: Report, *, spec: JobSpec, hardware: HardwareKind) -> float:
    """The cost [J] of a training up to a report (NSDI '23, eq. 2)."""
    totals = totals_of(before, report)
    counted = undistorted(totals, _profiled(before, report, totals))
    return cost_of(
        energy_j=counted.energy_j, time_s=counted.time_s, eta_knob=spec.eta_knob, max_power_w=hardware.max_power_w
    )


def totals_of(before: Progress, report: Report) -> Totals:
    """How far the training has come with a report."""
    energy_j = before.energy_j if report.energy_j is None else report.energy_j
    return Totals(epoch=report.epoch, time_s=report.time_s, energy_j=energy_j)


def _profiled(before: Progress, report: Report, totals: Totals) -> Profiled:
    return before.profiled.plus(before.totals, totals) if report.is_profiling else before.profiled


def judge_progress(spec: JobSpec, trial: Progress, bound: float | None) -> Verdict:
    """The verdict on a trial after a report. Reaching the target comes first: a model is a model.

    ``bound`` is the cost [J] above which it is stopped; None: there is none. No cost stops a trial whose every epoch
    was profiled: the next one shows its cost without that.
    """
    metric = math.nan if trial.metric is None else trial.metric
    shown_metric, shown_target = metric_and_target(metric, spec.target_metric)
    if spec.reached_target(metric):
        return Verdict(
            outcome=Outcome.CONVERGED,
            reason=f"the metric {shown_metric} reached the target {shown_target} after {epochs(trial.epoch)}",
        )
    if trial.nonfinite_metrics_in_a_row >= NONFINITE_METRICS_BEFORE_END:
        times = trial.nonfinite_metrics_in_a_row
        return Verdict(
            outcome=Outcome.NOT_CONVERGED, reason=f"{DIVERGED}: the metric was {metric:g} {times} times in a row"
        )
    if trial.epoch >= spec.max_epochs:
        return Verdict(
            outcome=Outcome.NOT_CONVERGED,
            reason=f"the metric was {shown_metric} after {trial.epoch:g} of at most {epochs(spec.max_epochs)}, "
            f"the target is {shown_target}",
        )
    if bound is not None and trial.cost > bound and not is_all_profiled(trial.epoch, trial.profiled):
        return Verdict(
            outcome=Outcome.COST_EXCEEDED, reason=f"the cost {joules(trial.cost)} is above the bound {joules(bound)}"
        )
    return Verdict(outcome=None, reason="the target is not reached yet, and the cost is within its bound")


def metric_and_target(metric: float, target: float) -> tuple[str, str]:
    """A metric and its target in words: with six digits, or with all, where they differ in later ones only."""
    shortly = f"{metric:g}", f"{target:g}"
    return shortly if metric == target or shortly[0] != shortly[1] else (repr(float(metric)), repr(float(target)))


def epochs(count: float) -> str:
    """A number of epochs in words."""
    return f"{count if isinstance(count, int) else f'{count:g}'} {'epoch' if count == 1 else 'epochs'}"


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


def as_meant(metric: float, *, target: float) -> float:
    """What a float32 was before it was rounded: the target, if that rounds to it, else the shortest decimal that does.

    The float32 of 0.9 is 0.8999999762, less than a target of 0.9. Whole numbers up to 2^24, and
    those that are no float32, stay as they are.
    """
    if metric.is_integer() and abs(metric) <= _MOST_WHOLE:
        return metric
    rounded = _float32(metric)
    if rounded is None or struct.unpack("f", rounded)[0] != metric:
        return metric
    decimals = (float(f"{metric:.{digits}g}") for digits in range(6, 10))
    return next((meant for meant in (target, *decimals) if _float32(meant) == rounded), metric)


def _float32(number: float) -> bytes | None:
    """A number rounded to a float32; None: it is too large."""
    try:
        return struct.pack("f", number)
    except OverflowError:
        return None
