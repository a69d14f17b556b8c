"""What the demo's job has shown: per batch size, and what the best one saves against the default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bso.domain.job_spec import JobSpec
from bso.domain.quantities import watts
from bso.domain.replies import ArmDescription, JobDescription, KindDescription
from bso.domain.trial import Outcome, Trial
from bso_cli.demo.training import POWER_W

ESTIMATE = f"estimated: {watts(POWER_W)} for each second of CPU time"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeSummary:
    """The ended trials of one batch size. Means are over those that converged; costs and energy in J, time in s."""

    batch_size: int
    status: str
    trials: int
    converged: int
    mean_epochs: float | None
    mean_energy: float | None
    mean_time: float | None
    mean_cost: float | None
    posterior_mean: float | None
    posterior_std: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """By how much less the best batch size costs than the default, as shares of the default's mean (0.5: half).

    The default's trainings are those of the job and of its control, ``comparison_trials``. ``error`` is the standard
    error of ``cost``, from the scatter of both batch sizes' converged trials; None for fewer than two of each.
    ``whole_cost`` compares all trials of a recurrence, exploration and failures included, with one of the default.
    """

    cost: float
    time: float
    energy: float
    error: float | None
    default_trials: int
    default_mean_cost: float
    best_trials: int
    best_mean_cost: float
    comparison_trials: int
    whole_cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSummary:
    """The whole of what the demo shows. ``saving`` is None until default and best have converged.

    ``energy_method`` says how energy was come by.
    """

    job_id: str
    recurrences: int
    trials: int
    about_costs: str
    stage: str | None
    default_batch_size: int
    best_batch_size: int | None
    saving: Saving | None
    energy_method: str
    hardware: str
    batch_sizes: tuple[BatchSizeSummary, ...]


def summarize(job: JobDescription, trials: Sequence[Trial], control: Sequence[Trial] = ()) -> DemoSummary | None:
    """Sum up the current version of a job on the hardware kind it ran on last; None before its first trial.

    ``control`` are trainings with the default batch size beside the job.
    """
    ours = [trial for trial in trials if trial.version_number == job.version_number and trial.outcome is not None]
    if not ours:
        return None
    hardware = ours[-1].hardware
    kind = next(kind for kind in job.kinds if kind.hardware_key == hardware.key)
    ours = [trial for trial in ours if trial.hardware.key == hardware.key]
    return DemoSummary(
        job_id=job.job_id,
        recurrences=job.recurrences,
        trials=len(ours),
        about_costs=kind.about_costs,
        stage=kind.stage,
        default_batch_size=job.spec.default_batch_size,
        best_batch_size=kind.best_batch_size,
        saving=saving_of(ours, [trial for trial in control if trial.hardware.key == hardware.key], job.spec, kind),
        energy_method=ESTIMATE,
        hardware=hardware.describe(),
        batch_sizes=tuple(_summary(arm, ours) for arm in kind.arms),
    )


def saving_of(trials: Sequence[Trial], control: Sequence[Trial], spec: JobSpec, kind: KindDescription) -> Saving | None:
    """Compare the converged trials of the best batch size with those of the default, also beside the job."""
    beside = _converged(control, spec.default_batch_size)
    default = [*_converged(trials, spec.default_batch_size), *beside]
    best = _converged(trials, kind.best_batch_size)
    if not default or not best:
        return None
    return Saving(
        cost=1 - _mean([t.cost for t in best]) / _mean([t.cost for t in default]),
        time=1 - _mean([t.time_s for t in best]) / _mean([t.time_s for t in default]),
        energy=1 - _mean([t.energy_j for t in best]) / _mean([t.energy_j for t in default]),
        error=_error_of_ratio([t.cost for t in best], [t.cost for t in default]),
        default_trials=len(default),
        default_mean_cost=_mean([t.cost for t in default]),
        best_trials=len(best),
        best_mean_cost=_mean([t.cost for t in best]),
        comparison_trials=len(beside),
        whole_cost=1 - _cost_of_a_recurrence(trials) / _mean([t.cost for t in default]),
    )


def _cost_of_a_recurrence(trials: Sequence[Trial]) -> float:
    """The mean cost [J] of all trials that a recurrence took."""
    return math.fsum(trial.cost for trial in trials) / len({trial.recurrence_id for trial in trials})


def _summary(arm: ArmDescription, trials: Sequence[Trial]) -> BatchSizeSummary:
    converged = _converged(trials, arm.batch_size)
    return BatchSizeSummary(
        batch_size=arm.batch_size,
        status=arm.status,
        trials=sum(1 for trial in trials if trial.batch_size == arm.batch_size),
        converged=len(converged),
        mean_epochs=_mean_or_none([trial.epoch for trial in converged]),
        mean_energy=_mean_or_none([trial.energy_j for trial in converged]),
        mean_time=_mean_or_none([trial.time_s for trial in converged]),
        mean_cost=_mean_or_none([trial.cost for trial in converged]),
        posterior_mean=arm.posterior_mean,
        posterior_std=arm.posterior_std,
    )


def _converged(trials: Sequence[Trial], batch_size: int | None) -> list[Trial]:
    return [trial for trial in trials if trial.batch_size == batch_size and trial.outcome is Outcome.CONVERGED]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _mean_or_none(values: Sequence[float]) -> float | None:
    return _mean(values) if values else None


def _relative_error(values: Sequence[float]) -> float:
    """The standard error of a mean, as a share of it."""
    mean = _mean(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return math.sqrt(variance / len(values)) / mean


def _error_of_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float | None:
    """The standard error of the ratio of two means, by first-order propagation."""
    if min(len(numerators), len(denominators)) < 2:
        return None
    ratio = _mean(numerators) / _mean(denominators)
    return ratio * math.hypot(_relative_error(numerators), _relative_error(denominators))
