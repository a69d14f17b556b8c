"""Where values lie in a picture, and which values its axes name."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from bso.domain.quantities import figure, joules

_LEAST_SHARE = 1e-5  # values that differ by less of their size are equal for a picture
_SMALLEST = 1e-300
_ROOM = 0.06  # of an axis, between its end and the outermost value
_MOST_TICKS, _MOST_LOGARITHMIC_TICKS = 6, 8
_ROOM_OF_TICK = 24.0
_LOGARITHMIC_FROM = 8.0
_LONGEST_LABEL = 9  # letters; more than that, and powers of ten are shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A place on an axis that has a label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """An axis from ``low`` to ``high`` that lies between the coordinates ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The coordinate of a finite value; beyond the ends of the axis, that of the end."""
        unit = max(abs(self.low), abs(self.high))
        low, high = self.low / unit, self.high / unit
        return _between(self.start, self.end, (value / unit - low) / (high - low))

    def ticks(self, label: Callable[[float], str] | None = None) -> tuple[Tick, ...]:
        """Round values, up to seven; without ``label`` as bare numbers with the digits that tell them apart."""
        step = _round_step(self.high / self._most - self.low / self._most, (1.0, 2.0, 2.5, 5.0, 10.0))
        return self._ticks(step, label or self._label(step))

    def whole_ticks(self) -> tuple[Tick, ...]:
        """Round whole numbers."""
        step = max(1.0, _round_step((self.high - self.low) / self._most, (1.0, 2.0, 5.0, 10.0)))
        return self._ticks(step, lambda value: f"{value:.0f}")

    @property
    def _most(self) -> int:
        return _as_many_as_fit(self.end - self.start, _MOST_TICKS)

    def _ticks(self, step: float, label: Callable[[float], str]) -> tuple[Tick, ...]:
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return tuple(Tick(at=self.at(count * step), label=label(count * step)) for count in range(first, last + 1))

    def _label(self, step: float) -> Callable[[float], str]:
        largest = max(abs(self.low), abs(self.high))
        digits = max(3, math.floor(math.log10(largest)) - math.floor(math.log10(step)) + 2)
        return lambda value: _short(value, digits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logarithmic:
    """An axis from ``low`` to ``high``, exponents of ten, that lies between the coordinates ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The coordinate of a value; of zero and less, that of the beginning of the axis."""
        if value <= 0.0:
            return self.start
        return _between(self.start, self.end, (math.log10(value) - self.low) / (self.high - self.low))

    def ticks(self, label: Callable[[float], str]) -> tuple[Tick, ...]:
        """One, two and five times powers of ten, or powers of ten, or every so many of them: up to eight."""
        first, last = math.floor(self.low), math.floor(self.high)
        chosen = self._held((1, 2, 5), range(first, last + 1))
        every = iter((1, *range(3, 400, 3)))
        most = _as_many_as_fit(self.end - self.start, _MOST_LOGARITHMIC_TICKS)
        while len(chosen) > most:
            step = next(every)
            chosen = self._held((1,), range(first - first % step, last + 1, step))
        return tuple(Tick(at=self.at(value), label=label(value)) for value in chosen)

    def _held(self, digits: Sequence[int], powers: Iterable[int]) -> list[float]:
        values = [float(f"{digit}e{power}") for power in powers for digit in digits]
        return [one for one in values if 0.0 < one < math.inf and self.low <= math.log10(one) <= self.high]


@dataclass(frozen=True, slots=True, kw_only=True)
class Categories:
    """An axis on which each of some sorted whole numbers has a band of the same width."""

    values: tuple[int, ...]
    start: float
    end: float

    @property
    def band(self) -> float:
        """The width of a band."""
        return abs(self.end - self.start) / len(self.values)

    def at(self, value: int) -> float:
        """The middle of the band of one of the values."""
        place = bisect_left(self.values, value)
        return _between(self.start, self.end, (place + 0.5) / len(self.values))

    def ticks(self, room: float, first: Collection[int]) -> tuple[Tick, ...]:
        """The values whose labels are at least ``room`` apart; those of ``first`` come before others."""
        chosen: list[float] = []
        for value in [*(one for one in self.values if one in first), *self._evenly(room)]:
            if all(abs(self.at(value) - other) >= room for other in chosen):
                chosen.append(self.at(value))
        labels = {self.at(value): str(value) for value in self.values}
        return tuple(Tick(at=at, label=labels[at]) for at in sorted(chosen))

    def _evenly(self, room: float) -> Sequence[int]:
        return self.values[:: max(1, math.ceil(room / self.band - 1e-9))]


def linear(values: Iterable[float], *, start: float, end: float) -> Linear:
    """An axis that holds all of these finite values, with room at its ends."""
    low, high = _apart(values)
    room = (high - low) * _ROOM if high - low < math.inf else 0.0
    most = sys.float_info.max
    return Linear(low=max(low - room, -most), high=min(high + room, most), start=start, end=end)


def linear_from_zero(values: Iterable[float], *, start: float, end: float) -> Linear:
    """An axis from 0 that holds all of these values, none of them negative, with room at its end."""
    largest = max(values, default=0.0)
    high = min(largest * (1.0 + _ROOM), sys.float_info.max) if largest > _SMALLEST else 1.0
    return Linear(low=0.0, high=high, start=start, end=end)


def of_costs(values: Sequence[float], *, start: float, end: float) -> Linear | Logarithmic:
    """An axis for positive costs: logarithmic where the largest is more than eight times the smallest."""
    low, high = min(values), max(values)
    if high / _LOGARITHMIC_FROM <= low:
        return linear_from_zero(values, start=start, end=end)
    low, high = math.log10(low), math.log10(high)
    room = (high - low) * _ROOM
    return Logarithmic(low=low - room, high=high + room, start=start, end=end)


def cost_label(value: float) -> str:
    """A cost [J] without trailing zeros: ``1.5 kJ``."""
    number, _, unit = joules(value).partition(" ")
    short = number.rstrip("0").rstrip(".") if "." in number and "e" not in number else number
    return f"{short} {unit}"


def _apart(values: Iterable[float]) -> tuple[float, float]:
    """The smallest and the largest; around them, where they are equal."""
    numbers = list(values)
    low, high = min(numbers), max(numbers)
    size = max(abs(low), abs(high))
    if size < _SMALLEST:
        return -1.0, 1.0
    if high / 2 - low / 2 > size * _LEAST_SHARE:
        return low, high
    half = size / 10
    return max(low - half, -sys.float_info.max), min(high + half, sys.float_info.max)


def _as_many_as_fit(length: float, most: int) -> int:
    return min(most, max(2, int(abs(length) / _ROOM_OF_TICK)))


def _short(value: float, digits: int) -> str:
    text = figure(value, digits)
    return text if len(text) <= _LONGEST_LABEL else f"{value:.{digits}g}"


def _round_step(least: float, digits: Sequence[float]) -> float:
    """The smallest of these multiples of a power of ten that is not less than ``least``."""
    power = math.floor(math.log10(least))
    return next((step for digit in digits if (step := float(f"{digit}e{power}")) >= least * (1 - 1e-9)), least)


def _between(start: float, end: float, share: float) -> float:
    return start + min(max(share, 0.0), 1.0) * (end - start)
