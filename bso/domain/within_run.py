"""By how much what an epoch costs varies within a run: a sum over its reports, of which none need be kept."""

from __future__ import annotations

from bso.domain.profiling import Profiled, is_all_profiled
from bso.domain.trial import Trial

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
