"""Which batch sizes trials had, and what they cost."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from bso.domain.job_spec import JobSpec
from bso.domain.quantities import joules, joules_within
from bso.domain.replies import ArmDescription, KindDescription
from bso.domain.trial import Trial
from bso.drawing.frame import Entry, Frame
from bso.drawing.looks import BEST, DEFAULT, EXPECTED, EXPECTED_UNTRIED, Look
from bso.drawing.scales import Categories, Linear, Logarithmic, cost_label, of_costs
from bso.drawing.svg import Markup, Size, box, clipped, counted, element, path, picture, sentence, titled, width_of
from bso.drawing.trial_marks import NONE_YET, Link, cost_of, last_trials, legend_of, legend_of_sizes, trial_mark

_MOST_ARMS = 60
_LATELY = 20  # trials
_GOLDEN = 0.6180339887  # its multiples lie apart, so marks of neighbouring trials do, too
_HIGHEST_BAND = 3.0  # times the largest cost: how far beyond a band reaches matters to nobody


def choices(
    trials: Sequence[Trial],
    spec: JobSpec,
    *,
    best: int | None,
    name: str,
    link: Link | None = None,
    size: Size | None = None,
) -> str:
    """Which batch size each of the last 150 trials had, and how it ended; the rows of default and best are marked."""
    size = size or Size()
    drawn = last_trials(trials)
    if not drawn:
        return sentence(*NONE_YET, name=name, size=size)
    legend = (*legend_of(drawn), *legend_of_sizes(spec, best))
    frame = Frame(size=size, x_title="trial", y_title="batch size", legend=legend)
    return picture(
        _choices_drawn(drawn, spec, best, frame, link),
        name=name,
        title="The batch size of each trial",
        description=_about_choices(drawn, spec, best, known=len(trials)),
        size=size,
    )


def costs(
    trials: Sequence[Trial],
    kind: KindDescription,
    spec: JobSpec,
    *,
    name: str,
    link: Link | None = None,
    size: Size | None = None,
) -> str:
    """What ended trials cost [J] by batch size, and what each batch size is expected to cost.

    Trials on other hardware kinds and of earlier versions are left out, since their costs compare with no others, and
    so are trials whose cost is not known completely.
    """
    size = size or Size()
    paid = _paid(trials, kind, spec)
    drawn, arms = last_trials(paid), _expected_arms(kind, spec)
    if not drawn and not arms:
        hint = "what the first training costs appears here when it has ended"
        return sentence("No cost yet", hint, name=name, size=size)
    legend = (*legend_of(drawn), *_legend_of_arms(arms), *legend_of_sizes(spec, kind.best_batch_size))
    frame = Frame(size=size, x_title="batch size", y_title="cost", legend=legend)
    return picture(
        _costs_drawn(drawn, arms, spec=spec, best=kind.best_batch_size, frame=frame, link=link),
        name=name,
        title=f"What each batch size costs on {clipped(kind.hardware)}",
        description=_about_costs(drawn, kind, known=len(paid), left_out=len(trials) - len(paid)),
        size=size,
    )


def _choices_drawn(
    drawn: Sequence[Trial], spec: JobSpec, best: int | None, frame: Frame, link: Link | None
) -> list[Markup]:
    first, last = drawn[0].trial_number, drawn[-1].trial_number
    marked = _marked(spec, best)
    sizes = _sizes(spec, marked, (trial.batch_size for trial in drawn))
    x = Linear(low=first - 0.5, high=last + 0.5, start=frame.left, end=frame.right)
    y = Categories(values=sizes, start=frame.bottom, end=frame.top)
    radius = min(max((frame.right - frame.left) / (last - first + 1) * 0.5, 2.7), 5.0)
    y_ticks, default = y.ticks(15.0, marked), y.at(spec.default_batch_size)
    return [
        *([] if best is None else [box(BEST, frame.left, frame.right, *_band(y, best))]),
        frame.grid([], y_ticks),
        path(DEFAULT, [((frame.left, default), (frame.right, default))], width=1.5),
        *(
            trial_mark(trial, (x.at(trial.trial_number), y.at(trial.batch_size)), radius=radius, link=link)
            for trial in drawn
        ),
        *frame.axes(x.whole_ticks(), y_ticks),
    ]


def _costs_drawn(
    drawn: Sequence[Trial],
    arms: Sequence[ArmDescription],
    *,
    spec: JobSpec,
    best: int | None,
    frame: Frame,
    link: Link | None,
) -> list[Markup]:
    marked = _marked(spec, best)
    sizes = _sizes(spec, marked, (*(arm.batch_size for arm in arms), *(trial.batch_size for trial in drawn)))
    x = Categories(values=sizes, start=frame.left, end=frame.right)
    y = of_costs(_cost_range(drawn, arms), start=frame.bottom, end=frame.top)
    y_ticks, default = y.ticks(cost_label), x.at(spec.default_batch_size)
    radius = 4.5 if len(drawn) <= 60 else 3.4
    return [
        *([] if best is None else [box(BEST, *_band(x, best), frame.top, frame.bottom)]),
        frame.grid([], y_ticks),
        path(DEFAULT, [((default, frame.bottom), (default, frame.top))], width=1.5),
        *(_expected(arm, x, y) for arm in arms),
        *(trial_mark(trial, (_beside(trial, x), y.at(trial.cost)), radius=radius, link=link) for trial in drawn),
        *frame.axes(x.ticks(width_of(str(sizes[-1])) + 8.0, marked), y_ticks),
    ]


def _marked(spec: JobSpec, best: int | None) -> set[int]:
    return {spec.default_batch_size} if best is None else {spec.default_batch_size, best}


def _sizes(spec: JobSpec, marked: set[int], others: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({*spec.batch_sizes, *marked, *others}))


def _band(scale: Categories, batch_size: int) -> tuple[float, float]:
    """The ends of the band of a batch size, which can be seen however many there are."""
    half, middle = max(scale.band / 2, 2.0), scale.at(batch_size)
    return middle - half, middle + half


def _paid(trials: Iterable[Trial], kind: KindDescription, spec: JobSpec) -> list[Trial]:
    """The ended trials on this hardware kind, of the newest version there, whose whole cost is known."""
    here = [trial for trial in trials if trial.hardware.key == kind.hardware_key]
    version = max((trial.version_number for trial in here), default=0)
    ended = [trial for trial in here if trial.version_number == version and not trial.is_active]
    return [trial for trial in ended if cost_of(trial) and trial.has_measured_cost(spec)]


def _expected_arms(kind: KindDescription, spec: JobSpec) -> list[ArmDescription]:
    """Those whose cost is expected to be a positive number; of very many, those that matter and some of the others."""
    known = [arm for arm in kind.arms if _mean(arm) > 0.0]
    if len(known) <= _MOST_ARMS:
        return known
    marked = _marked(spec, kind.best_batch_size)
    known.sort(key=lambda arm: (arm.batch_size not in marked, not arm.trials_with_cost))
    kept = known[: _MOST_ARMS // 2]
    others = known[len(kept) :]
    return [*kept, *others[:: math.ceil(len(others) / (_MOST_ARMS - len(kept)))]]


def _mean(arm: ArmDescription) -> float:
    mean = arm.posterior_mean
    return mean if mean is not None and math.isfinite(mean) else 0.0


def _deviation(arm: ArmDescription) -> float:
    deviation = arm.posterior_std
    return max(deviation, 0.0) if deviation is not None and math.isfinite(deviation) else 0.0


def _look_of(arm: ArmDescription) -> Look:
    return EXPECTED if arm.trials_with_cost else EXPECTED_UNTRIED


def _legend_of_arms(arms: Iterable[ArmDescription]) -> list[Entry]:
    used = {_look_of(arm) for arm in arms}
    words = {EXPECTED: "expected ± std. deviation", EXPECTED_UNTRIED: "expected, not tried"}
    return [Entry(look=look, words=words[look]) for look in words if look in used]


def _cost_range(drawn: Iterable[Trial], arms: Iterable[ArmDescription]) -> list[float]:
    """All costs, those that are expected, and the upper ends of their bands within reason."""
    paid = [*(trial.cost for trial in drawn), *(_mean(arm) for arm in arms)]
    highest = min(max(paid) * _HIGHEST_BAND, sys.float_info.max)
    return [*paid, *(min(_mean(arm) + _deviation(arm), highest) for arm in arms)]


def _expected(arm: ArmDescription, x: Categories, y: Linear | Logarithmic) -> Markup:
    """The band of the standard deviation around the expected cost, and a line at that."""
    mean, deviation, look = _mean(arm), _deviation(arm), _look_of(arm)
    half, middle = min(max(x.band * 0.42, 1.5), 32.0), x.at(arm.batch_size)
    left, right = middle - half, middle + half
    runs = counted(arm.trials_with_cost, "trial") if arm.trials_with_cost else "not tried yet"
    within = joules_within(mean, deviation) if deviation else joules(mean)
    return element(
        "g",
        titled(f"batch size {arm.batch_size}: expected {within}, {runs}"),
        box(look, left, right, y.at(mean + deviation), y.at(mean - deviation)),
        path(look, [((left, y.at(mean)), (right, y.at(mean)))], width=2.0),
    )


def _beside(trial: Trial, x: Categories) -> float:
    """Within the band of its batch size, at a place that depends on its number."""
    share = (trial.trial_number * _GOLDEN) % 1.0 - 0.5
    return x.at(trial.batch_size) + share * min(x.band * 0.72, 60.0)


def _about_choices(drawn: Sequence[Trial], spec: JobSpec, best: int | None, *, known: int) -> str:
    lately = [trial.batch_size for trial in reversed(drawn[-_LATELY:])]
    [(most, _)] = Counter(lately).most_common(1)
    found = "none is known to be the best yet" if best is None else f"{best} is the best one at present"
    return (
        f"{_of_all(drawn, known)}; batch size {most} was chosen most often lately. "
        f"The default is {spec.default_batch_size}, and {found}."
    )


def _about_costs(drawn: Sequence[Trial], kind: KindDescription, *, known: int, left_out: int) -> str:
    best = next((arm for arm in kind.arms if arm.batch_size == kind.best_batch_size), None)
    found = "No batch size is known to be the best yet"
    if kind.best_batch_size is not None:
        found = f"Batch size {kind.best_batch_size} is the best one at present"
    if best and _mean(best) > 0.0:
        found += f", expected to cost {joules_within(_mean(best), _deviation(best))}"
    others = (
        f" Left out: {counted(left_out, 'trial')} whose cost does not compare, or is not known." if left_out else ""
    )
    words = f" The expected cost is {clipped(kind.about_costs, 400)}." if kind.about_costs else ""
    return f"{found}. {_of_all(drawn, known)} with a cost on {clipped(kind.hardware)}.{others}{words}"


def _of_all(drawn: Sequence[Trial], known: int) -> str:
    if len(drawn) == known:
        return counted(known, "trial")
    return f"The last {len(drawn)} of {counted(known, 'trial')}"
