"""What each recurrence of a job cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from bso.domain.job_spec import JobSpec
from bso.domain.quantities import joules, percent
from bso.domain.trial import Outcome, Trial
from bso.drawing.frame import Entry, Frame
from bso.drawing.looks import ABORTED, DEFAULT, MODEL, UNFINISHED, Look
from bso.drawing.scales import Linear, cost_label, linear_from_zero
from bso.drawing.svg import Markup, Size, box, clipped, counted, path, picture, sentence, titled
from bso.drawing.trial_marks import MOST_TRIALS, NONE_YET, cost_of

_WORDS = {MODEL: "the training that converged", ABORTED: "other trainings", UNFINISHED: "running, so far"}


def recurrences(trials: Sequence[Trial], spec: JobSpec, *, name: str, size: Size | None = None) -> str:
    """What each recurrence cost [J]: the training that gave it its model, and above it its other trainings.

    A line shows what a training with the default batch size costs: the mean of those that converged, on the hardware
    kind and in the version of the last trial.
    """
    size = size or Size()
    known = _by_recurrence(trials)
    if not known:
        return sentence(*NONE_YET, name=name, size=size)
    drawn, default = _last(known), _default_costs(trials, spec)
    frame = Frame(size=size, x_title="recurrence", y_title="cost", legend=_legend(drawn, default))
    return picture(
        _bars_drawn(drawn, default, frame),
        name=name,
        title="What each recurrence cost",
        description=_about(drawn, default, spec, known=len(known)),
        size=size,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recurrence:
    """The trials of a recurrence, in order; ``number`` counts recurrences from 1 as they began."""

    number: int
    trials: tuple[Trial, ...]

    @property
    def model(self) -> Trial | None:
        """Its last trial that converged."""
        return next((one for one in reversed(self.trials) if one.last_outcome is Outcome.CONVERGED), None)

    @property
    def parts(self) -> list[tuple[Look, float]]:
        """What the model cost, what other ended trials cost, and what active ones have cost so far [J]."""
        model = self.model
        others = [one for one in self.trials if one is not model]
        every = [
            (MODEL, cost_of(model) if model else 0.0),
            (ABORTED, sum(cost_of(one) for one in others if not one.is_active)),
            (UNFINISHED, sum(cost_of(one) for one in others if one.is_active)),
        ]
        return [(look, cost) for look, cost in every if cost]

    @property
    def cost(self) -> float:
        """What all its trials cost [J]."""
        return sum(cost for _, cost in self.parts)

    @property
    def words(self) -> str:
        """The recurrence in one line."""
        model, others = self.model, len(self.trials) - 1
        first = f"recurrence {self.number} ({clipped(self.trials[0].recurrence_id)}): {joules(self.cost)}"
        if not model:
            return f"{first} for {counted(len(self.trials), 'training')}, no model yet"
        rest = f", the rest for {counted(others, 'other training')}" if others else ""
        return f"{first}, {joules(cost_of(model))} of it for the model with batch size {model.batch_size}{rest}"


def _by_recurrence(trials: Iterable[Trial]) -> list[_Recurrence]:
    found: dict[str, list[Trial]] = {}
    for trial in sorted(trials, key=lambda one: one.trial_number):
        found.setdefault(trial.recurrence_id, []).append(trial)
    return [_Recurrence(number=number, trials=tuple(alike)) for number, alike in enumerate(found.values(), start=1)]


def _last(known: Sequence[_Recurrence]) -> list[_Recurrence]:
    """The last recurrences that have no more than 150 trials together; the last one in any case."""
    kept: list[_Recurrence] = []
    room = MOST_TRIALS
    for one in reversed(known):
        room -= len(one.trials)
        if room < 0 and kept:
            break
        kept.append(one)
    return kept[::-1]


def _default_costs(trials: Sequence[Trial], spec: JobSpec) -> list[float]:
    last = max(trials, key=lambda one: one.trial_number)
    return [
        cost_of(trial)
        for trial in trials
        if trial.batch_size == spec.default_batch_size
        and trial.last_outcome is Outcome.CONVERGED
        and (trial.version_number, trial.hardware) == (last.version_number, last.hardware)
        and trial.has_measured_cost(spec)
        and cost_of(trial)
    ]


def _legend(drawn: Iterable[_Recurrence], default: Sequence[float]) -> tuple[Entry, ...]:
    used = {look for one in drawn for look, _ in one.parts}
    bars = [Entry(look=look, words=words) for look, words in _WORDS.items() if look in used]
    line = f"default, mean of {counted(len(default), 'training')}"
    return (*bars, *([Entry(look=DEFAULT, words=line)] if default else []))


def _bars_drawn(drawn: Sequence[_Recurrence], default: Sequence[float], frame: Frame) -> list[Markup]:
    means = [fmean(default)] if default else []
    x = Linear(low=drawn[0].number - 0.5, high=drawn[-1].number + 0.5, start=frame.left, end=frame.right)
    y = linear_from_zero([*(one.cost for one in drawn), *means], start=frame.bottom, end=frame.top)
    half = min((frame.right - frame.left) / len(drawn) * 0.38, 22.0)
    y_ticks = y.ticks(cost_label)
    return [
        frame.grid([], y_ticks),
        *(part for one in drawn for part in _bar(one, x.at(one.number), half, y)),
        *(path(DEFAULT, [((frame.left, y.at(mean)), (frame.right, y.at(mean)))], width=1.5) for mean in means),
        *frame.axes(x.whole_ticks(), y_ticks),
    ]


def _bar(one: _Recurrence, middle: float, half: float, y: Linear) -> Iterable[Markup]:
    below = 0.0
    for look, cost in one.parts:
        yield box(look, middle - half, middle + half, y.at(below + cost), y.at(below), titled(one.words))
        below += cost


def _about(drawn: Sequence[_Recurrence], default: Sequence[float], spec: JobSpec, *, known: int) -> str:
    every = counted(known, "recurrence")
    shown = every if len(drawn) == known else f"The last {len(drawn)} of {every}"
    kinds = len({trial.hardware for one in drawn for trial in one.trials})
    mixed = f" They ran on {kinds} hardware kinds, whose costs do not compare." if kinds > 1 else ""
    return f"{shown}; {_last_model(drawn, default, spec)}.{mixed}"


def _last_model(drawn: Sequence[_Recurrence], default: Sequence[float], spec: JobSpec) -> str:
    model = next((one.model for one in reversed(drawn) if one.model), None)
    if model is None:
        return "none of them has a model yet"
    paid = f"the training of the last model cost {joules(cost_of(model))} with batch size {model.batch_size}"
    if not default or model.batch_size == spec.default_batch_size:
        return paid
    saved = 1.0 - cost_of(model) / fmean(default)
    how = f"{percent(abs(saved))} {'less' if saved >= 0 else 'more'} than"
    return f"{paid}, {how} the mean of {counted(len(default), 'training')} with the default, {spec.default_batch_size}"
