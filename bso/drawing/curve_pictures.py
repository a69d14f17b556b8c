"""How trainings went from epoch to epoch: their validation metric, and their cost."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bso.domain.job_spec import JobSpec
from bso.domain.quantities import figure, joules, percent
from bso.drawing.frame import Entry, Frame
from bso.drawing.looks import BOUND, RUNNING, TARGET, Look, Shape, run_look
from bso.drawing.scales import Linear, cost_label, linear, linear_from_zero
from bso.drawing.svg import Markup, Point, Size, counted, element, linked, mark, path, picture, sentence, titled
from bso.drawing.trial_marks import Link

_MOST_RUNS = 40
_MOST_POINTS = 200
_MOST_SIZES = 8  # in the legend


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The validation metric of a trial after each epoch: ``points`` are pairs of epoch and metric."""

    trial_number: int
    batch_size: int
    points: tuple[Point, ...]
    is_running: bool


def curves(
    runs: Sequence[Curve], spec: JobSpec, *, name: str, link: Link | None = None, size: Size | None = None
) -> str:
    """The metric of running trials, strong, and of the last ended ones, thin: up to 40 of both."""
    size = size or Size()
    if not runs:
        return sentence("No trial yet", "the first training of this job appears here", name=name, size=size)
    drawn = [run for run in _last_runs(runs) if _finite(run.points)]
    if not drawn:
        hint = "the metric of the first epoch appears here"
        return sentence("No finite metric yet", hint, name=name, size=size)
    frame = Frame(size=size, x_title="epoch", y_title="metric", legend=_legend(drawn, spec))
    return picture(
        _runs_drawn(drawn, spec, frame, link),
        name=name,
        title="The validation metric by epoch",
        description=_about(runs, drawn, spec),
        size=size,
    )


def progress_of_cost(points: Sequence[Point], *, bound: float | None, name: str, size: Size | None = None) -> str:
    """What a trial has cost so far [J] after each epoch, and the bound [J] at which it is stopped."""
    size = size or Size()
    drawn = [point for point in _finite(points) if point[1] >= 0.0]
    if not drawn:
        return sentence("No report yet", "the cost of the first epoch appears here", name=name, size=size)
    bounds = [] if bound is None or not 0.0 < bound < math.inf else [bound]
    legend = (
        Entry(look=run_look(0), words="cost so far"),
        *(Entry(look=BOUND, words=f"bound, {joules(one)}") for one in bounds),
    )
    frame = Frame(size=size, x_title="epoch", y_title="cost", legend=legend)
    return picture(
        _progress_drawn(drawn, bounds, frame),
        name=name,
        title="What the trial has cost so far",
        description=_about_progress(drawn, bounds),
        size=size,
    )


def thinned(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """At most so many of the points of a line: the first, the last, and the extremes of each stretch between."""
    if len(points) <= most:
        return list(points)
    inner, stretches = points[1:-1], (most - 2) // 2
    kept = [points[0]]
    for number in range(stretches):
        stretch = inner[number * len(inner) // stretches : (number + 1) * len(inner) // stretches]
        ends = (min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1]))
        kept.extend(sorted(dict.fromkeys(ends)))
    return [*kept, points[-1]]


def _finite(points: Iterable[Point]) -> list[Point]:
    """Those whose numbers both are, by epoch."""
    return sorted((one for one in points if math.isfinite(one[0]) and math.isfinite(one[1])), key=lambda one: one[0])


def _last_runs(runs: Iterable[Curve]) -> list[Curve]:
    """The last 40, running ones preferred, in the order in which they are drawn: the running ones on top."""
    return sorted(runs, key=lambda run: (run.is_running, run.trial_number))[-_MOST_RUNS:]


def _look_of(run: Curve, spec: JobSpec) -> Look:
    """By the place of its batch size among those of the job, so that it stays the same."""
    return run_look(bisect_left(spec.batch_sizes, run.batch_size))


def _legend(drawn: Iterable[Curve], spec: JobSpec) -> tuple[Entry, ...]:
    looks = {run.batch_size: _look_of(run, spec) for run in drawn}
    entries = [Entry(look=looks[size], words=f"batch size {size}") for size in sorted(looks)]
    if len(entries) > _MOST_SIZES:
        left = len(entries) - _MOST_SIZES + 1
        entries = [*entries[: _MOST_SIZES - 1], Entry(look=entries[-1].look, words=f"{left} more sizes")]
    running = [Entry(look=RUNNING, words="running")] if any(run.is_running for run in drawn) else []
    return (Entry(look=TARGET, words=f"target {figure(spec.target_metric, 6)}"), *running, *entries)


def _runs_drawn(drawn: Sequence[Curve], spec: JobSpec, frame: Frame, link: Link | None) -> list[Markup]:
    points = [point for run in drawn for point in _finite(run.points)]
    x = linear_from_zero((epoch for epoch, _ in points), start=frame.left, end=frame.right)
    y = linear([spec.target_metric, *(metric for _, metric in points)], start=frame.bottom, end=frame.top)
    target, y_ticks = y.at(spec.target_metric), y.ticks()
    return [
        frame.grid([], y_ticks),
        path(TARGET, [((frame.left, target), (frame.right, target))], width=1.5),
        *(_run(run, _look_of(run, spec), x, y, link) for run in drawn),
        *frame.axes(x.ticks(), y_ticks),
    ]


def _run(run: Curve, look: Look, x: Linear, y: Linear, link: Link | None) -> Markup:
    points = _finite(run.points)
    state = "running" if run.is_running else "ended"
    epoch, metric = points[-1]
    words = (
        f"trial {run.trial_number}: batch size {run.batch_size}, {state}, "
        f"metric {figure(metric, 4)} at epoch {figure(epoch, 4)}"
    )
    line = [(x.at(one), y.at(other)) for one, other in thinned(points)]
    drawn = element("g", titled(words), *(_strong(look, line) if run.is_running else _thin(look, line)))
    return linked(drawn, words, link(run.trial_number) if link else None)


def _strong(look: Look, line: Sequence[Point]) -> list[Markup]:
    """A thick line with a ring at its end, which stands for what is running in every picture."""
    ring = replace(look, shape=Shape.RING)
    return [path(look, [line], width=3.0), mark(ring, line[-1], radius=5.0)]


def _thin(look: Look, line: Sequence[Point]) -> list[Markup]:
    """A thin line; of a single point, a dot."""
    dot = replace(look, shape=Shape.CIRCLE)
    if len(line) == 1:
        return [mark(dot, line[0], radius=2.5)]
    return [path(look, [line], width=1.3, opacity=0.6)]


def _progress_drawn(points: Sequence[Point], bounds: Sequence[float], frame: Frame) -> list[Markup]:
    look = run_look(0)
    x = linear_from_zero((epoch for epoch, _ in points), start=frame.left, end=frame.right)
    y = linear_from_zero([*(cost for _, cost in points), *bounds], start=frame.bottom, end=frame.top)
    line = [(x.at(epoch), y.at(cost)) for epoch, cost in thinned(points)]
    epoch, cost = points[-1]
    y_ticks = y.ticks(cost_label)
    return [
        frame.grid([], y_ticks),
        *(path(BOUND, [((frame.left, y.at(one)), (frame.right, y.at(one)))], width=1.5) for one in bounds),
        path(look, [line], titled("cost so far"), width=2.5),
        mark(
            replace(look, shape=Shape.CIRCLE), line[-1], titled(f"epoch {figure(epoch, 4)}: {joules(cost)}"), radius=4.5
        ),
        *frame.axes(x.ticks(), y_ticks),
    ]


def _about(runs: Sequence[Curve], drawn: Sequence[Curve], spec: JobSpec) -> str:
    better = max if spec.higher_is_better_metric else min
    best = better(metric for run in drawn for _, metric in _finite(run.points))
    running = sum(run.is_running for run in drawn)
    every = counted(len(runs), "trial")
    which = every if len(runs) == len(drawn) else f"{len(drawn)} of {every}"
    left_out = sum(len(run.points) - len(_finite(run.points)) for run in _last_runs(runs))
    broken = f" Left out: {counted(left_out, 'metric')} not finite." if left_out else ""
    return (
        f"{which}, {running} running; the best metric is {figure(best, 4)}, "
        f"the target {figure(spec.target_metric, 6)}.{broken}"
    )


def _about_progress(points: Sequence[Point], bounds: Sequence[float]) -> str:
    epoch, cost = points[-1]
    so_far = f"{joules(cost)} until epoch {figure(epoch, 4)}"
    if not bounds:
        return f"{so_far}; no bound."
    return f"{so_far}; that is {percent(cost / bounds[0])} of the bound, {joules(bounds[0])}."
