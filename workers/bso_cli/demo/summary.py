"""What the demo's job has come to: what a recurrence saves against the default batch size, and the best one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from bso.domain.quantities import counted
from bso.domain.recurrence_costs import Saving, converged_costs, recurrence_costs, saving_of
from bso.domain.replies import JobDescription, KindDescription
from bso.domain.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSummary:
    """The demo's job on the hardware that it ran on last. Costs in J.

    ``saving`` is what a recurrence costs less than a training with the default batch size, with all trials that it
    took; ``best_saving`` is that of a training with the best batch size. Both are None where nothing can be compared.
    ``comparisons`` counts the trainings with the default beside the job.
    """

    job: JobDescription
    kind: KindDescription
    trials: tuple[Trial, ...]
    default_cost: float | None
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
    beside = converged_costs((trial for trial in control if trial.hardware.key == key), job.spec.default_batch_size)
    costs = [*converged_costs(ours, job.spec.default_batch_size), *beside]
    return DemoSummary(
        job=job,
        kind=kind,
        trials=tuple(ours),
        default_cost=fmean(costs) if costs else None,
        comparisons=len(beside),
        saving=saving_of(recurrence_costs(ours), costs),
        best_saving=saving_of(converged_costs(ours, kind.best_batch_size), costs),
    )


def conclusion(summary: DemoSummary) -> str:
    """What was saved, and the best batch size."""
    best, default, saving = summary.kind.best_batch_size, summary.job.spec.default_batch_size, summary.saving
    if best is None:
        return "Nothing has converged yet: run it again, it goes on."
    if saving is None or summary.best_saving is None:
        return f"Best batch size: {best}. The default {default} has not converged, so nothing to compare."
    beside = f", {summary.comparisons} of them run to compare and not in the table" if summary.comparisons else ""
    counts = f"means of {counted(saving.count, 'recurrence')} and {counted(saving.others, 'training')}{beside}"
    whole = (
        f"With all that was tried on the way, a recurrence cost [bold]{saving.words}[/] than a training with the "
        f"default batch size {default} ({counts})."
    )
    if best == default:
        return f"{whole} The default is the best one known."
    return f"{whole} Best batch size: [bold green]{best}[/]. A training with it costs {summary.best_saving.words}."
