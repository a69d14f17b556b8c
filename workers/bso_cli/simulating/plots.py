"""A study as pictures: regrets with bands, the choices over time, and what each batch size costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bso.domain.errors import Misconfigured
from bso.domain.foreign_text import shown
from bso.simulator.run import Run
from bso.simulator.study import CaseRuns

_ACCENT, _QUIET, _GOOD, _BAD, _BAND = "#1d3557", "#9aa5b1", "#2a9d5c", "#c8553d", "#e09f3e"
_WIDEST = 100.0  # a band reaches down to this part of the mean, since a logarithmic axis has no zero
MOST_CASES = 24
"""Cases that one picture shows; of more only the first."""


def draw(results: Sequence[CaseRuns], folder: Path, *, is_named: bool) -> tuple[Path, ...]:
    """Write regret.png, choices.png and costs.png, ``is_named``: with the policy in the name.

    Raises Misconfigured where matplotlib is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {"regret": _draw_regret, "choices": _draw_choices, "costs": draw_costs}
    shown = list(results)[:MOST_CASES]
    policy = f"-{results[0].runs[0].policy}" if is_named else ""
    return tuple(_picture(folder / f"{name}{policy}.png", shown, draw_one) for name, draw_one in pictures.items())


def _picture(path: Path, results: Sequence[CaseRuns], draw_one: Callable[[Any, CaseRuns], None]) -> Path:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Misconfigured(
            "plots need matplotlib, which is not installed: pip install 'bso-optimizer[demo]'"
        ) from error
    columns = min(2, len(results))
    rows = math.ceil(len(results) / columns)
    figure = Figure(figsize=(6.5 * columns, 3.4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(rows, columns, squeeze=False).flat
    for axes, result in zip(all_axes, results, strict=False):
        draw_one(axes, result)
        title = shown(f"{result.case.name}, {result.runs[0].policy}")
        axes.set_title(title, loc="left", fontsize=10, parse_math=False)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(all_axes)[len(results) :]:
        axes.set_visible(False)
    figure.savefig(path, dpi=110)
    return path


def _draw_regret(axes: Any, result: CaseRuns) -> None:
    """Mean and the band of 95 % of the mean (normal approximation), and each seed as a thin line."""
    regrets = np.array([run.regrets for run in result.runs])
    numbers = np.arange(1, regrets.shape[1] + 1)
    mean = regrets.mean(axis=0)
    axes.plot(numbers, regrets.T, color=_QUIET, linewidth=0.5, alpha=0.5)
    if len(result.runs) > 1:
        half = 1.96 * regrets.std(axis=0, ddof=1) / math.sqrt(len(result.runs))
        axes.fill_between(numbers, mean - half, mean + half, color=_ACCENT, alpha=0.25, linewidth=0)
    axes.plot(numbers, mean, color=_ACCENT, linewidth=2)
    _mark_phases(axes, result)
    axes.set(xlabel="recurrence", ylabel="regret [trainings]")
    axes.grid(alpha=0.25)


def _draw_choices(axes: Any, result: CaseRuns) -> None:
    """The share of seeds whose recurrence got its model from each batch size."""
    sizes = result.case.problem.batch_sizes
    chosen = np.array([run.batch_sizes for run in result.runs])
    shares = np.array([(chosen == size).mean(axis=0) for size in sizes])
    last = chosen.shape[1] + 0.5
    axes.imshow(
        shares, aspect="auto", origin="lower", cmap="Blues", vmin=0, vmax=1, extent=(0.5, last, -0.5, len(sizes) - 0.5)
    )
    best = [sizes.index(size) for size in result.runs[0].oracle.batch_sizes]
    axes.plot(np.arange(1, len(best) + 1), best, color=_GOOD, linewidth=1, linestyle="--", label="best")
    axes.axhline(sizes.index(result.case.problem.default_batch_size), color=_BAD, linewidth=0.8, linestyle=":")
    _mark_phases(axes, result)
    axes.set_yticks(range(len(sizes)), labels=[str(size) for size in sizes])
    axes.set(xlabel="recurrence", ylabel="batch size")
    axes.legend(loc="upper right", fontsize=8, frameon=False)


def _mark_phases(axes: Any, result: CaseRuns) -> None:
    """A line where the job moves to another GPU, or gets a new version."""
    for phase in result.case.problem.earlier:
        axes.axvline(phase.until - 0.5, color=_BAD, linewidth=0.8, linestyle="--")


def draw_costs(axes: Any, result: CaseRuns) -> None:
    """What a model costs by batch size, what the policy of the first seed expects it to, and what trials were paid.

    Means and expectations are those at the last recurrence, at the best power limits; trials those of its phase.
    """
    problem, first = result.case.problem, result.runs[0]
    last = problem.phase(first.recurrences)
    trials = (trial for run in result.runs for trial in run.trials if problem.phase(trial.recurrence) == last)
    paid = [(trial.batch_size, trial.cost) for trial in trials]
    axes.scatter(*zip(*paid, strict=True), color=_QUIET, s=6, alpha=0.3, label="paid for a trial")
    _draw_expected(axes, first)
    finite = {size: cost for size, cost in first.mean_costs.items() if math.isfinite(cost)}
    axes.plot(list(finite), list(finite.values()), "o-", color=_ACCENT, label="mean of a model")
    best = min(finite, key=finite.__getitem__)
    axes.plot([best], [finite[best]], "o", color=_GOOD, markersize=10, label="best")
    axes.axvline(problem.default_batch_size, color=_BAD, linewidth=0.8, linestyle=":", label="default")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(problem.batch_sizes, labels=[str(size) for size in problem.batch_sizes], rotation=45)
    axes.set_xticks([], minor=True)
    axes.set(xlabel="batch size", ylabel="cost [J]")
    axes.legend(fontsize=8, frameon=False)


def _draw_expected(axes: Any, run: Run) -> None:
    """The policy's expectation and where it is 95 % certain that the mean lies, as far as a logarithm shows it."""
    if not run.expected:
        return
    sizes = sorted(run.expected)
    mean = np.array([run.expected[size].cost for size in sizes])
    half = 1.96 * np.array([run.expected[size].deviation for size in sizes])
    axes.fill_between(sizes, np.maximum(mean - half, mean / _WIDEST), mean + half, color=_BAND, alpha=0.3, linewidth=0)
    axes.plot(sizes, mean, "s--", color=_BAND, markersize=4, linewidth=1, label=f"expected ± 95 %, seed {run.seed}")
