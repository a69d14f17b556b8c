"""What the demo's job has come to: what a recurrence saves against the default batch size, and the best one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bso.domain.quantities import percent
from bso.domain.replies import JobDescription, KindDescription
from bso.domain.statistics import CostStatistics, statistics_of
from bso.domain.trial import Outcome, Trial
from bso_cli.terminal import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """By how much less one mean cost is than another, as a share of the latter (0.5: half), and its standard error.

    ``error`` is None for fewer than two of each.
    """

    share: float
    error: float | None
    mean_cost: float
    count: int

    @property
    def words(self) -> str:
        """``48% ± 3% less``."""
        error = "" if self.error is None else f" ± {percent(self.error, 1)}"
        return f"{percent(abs(self.share))}{error} {'less' if self.share >= 0 else 'more'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSummary:
    """The demo's job on the hardware that it ran on last. Costs in J.

    ``saving`` is what a recurrence costs less than a training with the default batch size, with all trials that it
    took; ``best_saving`` is that of a training with the best batch size. Both are None where nothing can be compared.
    ``defaults`` counts the trainings with the default that converged, ``comparisons`` of them beside the job.
    """

    job: JobDescription
    kind: KindDescription
    trials: tuple[Trial, ...]
    default_cost: float | None
    defaults: int
    comparisons: int
    saving: Saving | None
    best_saving: Saving | None


def summarize(job: JobDescription, trials: Sequence[Trial], control: Sequence[Trial] = ()) -> DemoSummary | None:
    """Sum up a job's ended trials; None before the first. ``control`` are trainings with the default beside the job."""
    ended = [trial for trial in trials if trial.version_number == job.version_number and trial.outcome is not None]
    if not ended:
        return None
    key = ended[-1].hardware.key
    ours = [trial for trial in ended if trial.hardware.key == key]
    kind = next(kind for kind in job.kinds if kind.hardware_key == key)
    default = job.spec.default_batch_size
    beside = _converged([trial for trial in control if trial.hardware.key == key], default)
    costs = [*_converged(ours, default), *beside]
    recurrences: dict[str, float] = {}
    for trial in ours:
        recurrences[trial.recurrence_id] = recurrences.get(trial.recurrence_id, 0.0) + trial.cost
    return DemoSummary(
        job=job,
        kind=kind,
        trials=tuple(ours),
        default_cost=statistics_of(costs).mean if costs else None,
        defaults=len(costs),
        comparisons=len(beside),
        saving=_saving(list(recurrences.values()), costs),
        best_saving=_saving(_converged(ours, kind.best_batch_size), costs),
    )


def conclusion(summary: DemoSummary) -> str:
    """What was saved, and the best batch size."""
    best, default = summary.kind.best_batch_size, summary.job.spec.default_batch_size
    if best is None:
        return "Nothing has converged yet: run it again, it goes on."
    if summary.saving is None or summary.best_saving is None:
        return f"Best batch size: {best}. The default {default} has not converged, so nothing to compare."
    beside = f", {summary.comparisons} of them run to compare and not in the table" if summary.comparisons else ""
    counts = f"means of {counted(summary.saving.count, 'recurrence')} and {counted(summary.defaults, 'training')}{beside}"
    whole = (
        f"With all that was tried on the way, a recurrence cost [bold]{summary.saving.words}[/] than a training with "
        f"the default batch size {default} ({counts})."
    )
    if best == default:
        return f"{whole} The default is the best one known."
    return f"{whole} Best batch size: [bold green]{best}[/]. A training with it costs {summary.best_saving.words}."


def _converged(trials: Sequence[Trial], batch_size: int | None) -> list[float]:
    return [t.cost for t in trials if t.batch_size == batch_size and t.outcome is Outcome.CONVERGED]


def _saving(costs: Sequence[float], others: Sequence[float]) -> Saving | None:
    """The standard error is that of the ratio of two means, by first-order propagation."""
    if not costs or not others:
        return None
    found, other = statistics_of(costs), statistics_of(others)
    ratio = found.mean / other.mean
    is_certain = min(found.count, other.count) > 1
    error = ratio * math.hypot(_relative_error(found), _relative_error(other)) if is_certain else None
    return Saving(share=1 - ratio, error=error, mean_cost=found.mean, count=found.count)


def _relative_error(found: CostStatistics) -> float:
    return math.sqrt(found.variance / found.count) / found.mean
