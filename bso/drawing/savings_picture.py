"""What was saved in each month."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bso.domain.baseline import Uncertain
from bso.domain.quantities import within
from bso.domain.savings import J_PER_KWH
from bso.domain.savings_in_words import energy_in_words
from bso.drawing.frame import Entry, Frame
from bso.drawing.looks import ABORTED, AXIS, MODEL, Look
from bso.drawing.scales import Linear, Tick, linear
from bso.drawing.svg import Markup, Size, box, counted, path, picture, sentence, titled

_MOST_MONTHS = 36
_WIDEST = 26.0
_ROOM_OF_MONTH = 56.0
_WHISKER = 4.0
_WORDS = {MODEL: "saved", ABORTED: "lost"}


def savings(
    months: Sequence[tuple[str, Uncertain]], *, name: str, is_assumed: bool = False, size: Size | None = None
) -> str:
    """The energy [J] that was saved in each month (``2026-11``), the last three years, with intervals of about 95 %.

    Losses reach downwards. ``is_assumed``: no meter has measured it, and the picture says so.
    """
    size = size or Size()
    drawn, energy = list(months)[-_MOST_MONTHS:], "assumed energy" if is_assumed else "energy"
    if not drawn:
        return sentence("Nothing to compare yet", "no energy can be compared yet", name=name, size=size)
    used = {_look_of(estimate) for _, estimate in drawn}
    legend = tuple(Entry(look=look, words=words) for look, words in _WORDS.items() if look in used)
    frame = Frame(size=size, x_title="month", y_title=f"{energy} saved", legend=legend)
    return picture(
        _bars(drawn, frame),
        name=name,
        title=f"The {energy} saved in each month",
        description=_about(drawn, of=len(months)),
        size=size,
    )


def _look_of(estimate: Uncertain) -> Look:
    return MODEL if estimate.value >= 0 else ABORTED


def _bars(drawn: Sequence[tuple[str, Uncertain]], frame: Frame) -> list[Markup]:
    ends = [one.value + sign * one.half_interval for _, one in drawn for sign in (-1.0, 1.0)]
    kwh = [value / J_PER_KWH for value in (0.0, *ends)]
    x = Linear(low=0.5, high=len(drawn) + 0.5, start=frame.left, end=frame.right)
    y = linear(kwh, start=frame.bottom, end=frame.top)
    band = (frame.right - frame.left) / len(drawn)
    half = min(band * 0.38, _WIDEST)
    every = max(1, round(_ROOM_OF_MONTH / band + 0.5))
    places = [*enumerate(drawn, start=1)][::every]
    x_ticks = [Tick(at=x.at(place), label=month) for place, (month, _) in places]
    y_ticks = y.ticks(_label)
    return [
        frame.grid([], y_ticks),
        *(part for place, each in enumerate(drawn, start=1) for part in _bar(each, x.at(place), half, y)),
        path(AXIS, [((frame.left, y.at(0.0)), (frame.right, y.at(0.0)))]),
        *frame.axes(x_ticks, y_ticks),
    ]


def _label(kwh: float) -> str:
    value, _, unit = within(kwh * 1e3, 0.0, "Wh").partition(" ± ")
    number = value.rstrip("0").rstrip(".") if "." in value else value
    return f"{number} {unit.partition(' ')[2]}" if kwh else "0"


def _bar(each: tuple[str, Uncertain], middle: float, half: float, y: Linear) -> Iterable[Markup]:
    month, estimate = each
    look = _look_of(estimate)
    zero, end = y.at(0.0), y.at(estimate.value / J_PER_KWH)
    words = f"{month}: {energy_in_words(estimate)} {_WORDS[look]}"
    yield box(look, middle - half, middle + half, min(zero, end), max(zero, end), titled(words))
    low, high = (y.at((estimate.value + sign * estimate.half_interval) / J_PER_KWH) for sign in (-1.0, 1.0))
    caps = [((middle - _WHISKER, at), (middle + _WHISKER, at)) for at in (low, high)]
    yield path(AXIS, [((middle, low), (middle, high)), *caps])


def _about(drawn: Sequence[tuple[str, Uncertain]], *, of: int) -> str:
    every = counted(of, "month")
    shown = every if len(drawn) == of else f"The last {len(drawn)} of {every}"
    month, last = drawn[-1]
    return f"{shown}; in {month}, {energy_in_words(last)}. A line shows the interval of about 95 % of each."
