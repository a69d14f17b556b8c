"""The exploration as a picture: which batch sizes were tried, what they cost, and what is believed of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bso.domain.frozen_values import replace
from bso.domain.quantities import joules
from bso.domain.savings import recurrence_costs
from bso.domain.tally import LAST
from bso.domain.trial import Outcome
from bso_cli.demo.summary import DemoSummary

_MARKS: Mapping[Outcome, tuple[str, str, str]] = {
    Outcome.CONVERGED: ("o", "#2a9d5c", "reached the target"),
    Outcome.COST_EXCEEDED: ("X", "#e08a00", "stopped early: too costly"),
    Outcome.NOT_CONVERGED: ("s", "#c8553d", "did not converge"),
    Outcome.INFEASIBLE: ("^", "#7a1f1f", "infeasible"),
    Outcome.INTERRUPTED: ("D", "#8d6cab", "interrupted"),
    Outcome.CANCELLED: ("v", "#999999", "cancelled"),
}
_ACCENT, _QUIET = "#1d3557", "#9aa5b1"
_OUT = ("pruned", "infeasible", "removed")
_COST = "cost, estimated"
_DEEPEST = 0.9  # of the mean: how far an interval reaches down, since a logarithmic axis has no zero


def draw(summary: DemoSummary, path: Path) -> Path:
    """Write the picture as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 9), layout="constrained")
    FigureCanvasAgg(figure)
    exploration, costs, beliefs = figure.subplots(3, 1)
    figure.suptitle(_headline(summary), fontsize=13, fontweight="bold", x=0.01, ha="left")
    _draw_exploration(exploration, summary)
    _draw_costs(costs, summary)
    _draw_beliefs(beliefs, summary)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def _headline(summary: DemoSummary) -> str:
    """What recurrences save, exploration included."""
    default = summary.job.spec.default_batch_size
    if summary.saving is None:
        return f"{summary.job.job_id}: {len(summary.trials)} trials, no saving known yet"
    return f"A recurrence costs {summary.saving.words} than with the default {default}, all that was tried included"


def _draw_exploration(axes: Any, summary: DemoSummary) -> None:
    trials = summary.trials
    numbers = [trial.trial_number for trial in trials]
    axes.plot(numbers, [trial.batch_size for trial in trials], color=_QUIET, linewidth=0.8, zorder=1)
    for outcome, (marker, colour, label) in _MARKS.items():
        points = [trial for trial in trials if trial.outcome is outcome]
        if points:
            x, y = [trial.trial_number for trial in points], [trial.batch_size for trial in points]
            axes.scatter(
                x, y, marker=marker, color=colour, label=label, s=46, zorder=2, edgecolors="white", linewidths=0.6
            )
    axes.axhline(summary.job.spec.default_batch_size, color=_QUIET, linestyle=":", label="default batch size")
    _batch_size_axis(axes.yaxis, axes.set_yscale, summary)
    axes.set(xlabel="trial", ylabel="batch size")
    axes.set_title("Batch size of each trial", loc="left")
    _legend_beside(axes)


def _draw_costs(axes: Any, summary: DemoSummary) -> None:
    """What was paid for each model; what the trials that gave none add to it stands out."""
    values = recurrence_costs(summary.trials)
    reached = recurrence_costs(
        replace(trial, cost=trial.cost if trial.outcome is Outcome.CONVERGED else 0.0) for trial in summary.trials
    )
    numbers = range(1, len(values) + 1)
    axes.bar(numbers, values, color="#e0a458", width=0.8, label="stopped, or failed")
    axes.bar(numbers, reached, color=_QUIET, width=0.8, label="reached the target")
    averages = [sum(values[max(0, end - LAST) : end]) / min(LAST, end) for end in numbers]
    axes.plot(numbers, averages, color=_ACCENT, linewidth=2, label="mean of the last five")
    if summary.default_cost is not None:
        axes.axhline(summary.default_cost, color="#c8553d", linestyle=":", label="default batch size, mean")
    axes.set(xlabel="recurrence", ylabel=_COST)
    axes.yaxis.set_major_formatter(_in_joules())
    axes.set_title("Cost of each recurrence, with all that was tried", loc="left")
    _legend_beside(axes)


def _draw_beliefs(axes: Any, summary: DemoSummary) -> None:
    seen = [trial for trial in summary.trials if trial.outcome is Outcome.CONVERGED]
    sizes, costs = [trial.batch_size for trial in seen], [trial.cost for trial in seen]
    axes.scatter(sizes, costs, color="#e0a458", s=18, alpha=0.8, label="cost of a converged trial", zorder=1)
    best = summary.kind.best_batch_size
    for label, colour, arms in (
        ("best batch size", "#2a9d5c", [one for one in summary.kind.arms if one.batch_size == best]),
        ("expected next ± 2 std", _ACCENT, [one for one in summary.kind.arms if one.status not in _OUT]),
        ("the same, but left out", _QUIET, [one for one in summary.kind.arms if one.status in _OUT]),
    ):
        known = [
            (one.batch_size, one.posterior_mean, 2 * one.posterior_std)
            for one in arms
            if one.posterior_mean is not None and one.posterior_std is not None
            if colour != _ACCENT or one.batch_size != best
        ]
        if known:
            below = [min(half, mean * _DEEPEST) for _, mean, half in known]
            x, y, above = zip(*known, strict=True)
            axes.errorbar(x, y, yerr=[below, above], fmt="o", color=colour, capsize=5, label=label, zorder=2)
    _batch_size_axis(axes.xaxis, axes.set_xscale, summary)
    axes.set(xlabel="batch size", ylabel=_COST)
    _cost_axis(axes)
    axes.set_title("What a training to the target is expected to cost next, by batch size", loc="left")
    _legend_beside(axes)


def _batch_size_axis(axis: Any, set_scale: Any, summary: DemoSummary) -> None:
    sizes = [one.batch_size for one in summary.kind.arms]
    set_scale("log", base=2)
    axis.set_ticks(sizes, labels=[str(size) for size in sizes])
    axis.set_ticks([], minor=True)


def _cost_axis(axes: Any) -> None:
    """Logarithmic, so that one batch size that costs far more does not set the scale for the others."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(_in_joules())
    axes.yaxis.set_minor_formatter(NullFormatter())


def _in_joules() -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _position: joules(value))


def _legend_beside(axes: Any) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
