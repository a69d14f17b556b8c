"""Counters of energy: numbers that grow, until they do not. Rules of what their readings tell."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

MOST_POWER_W = 1000.0
"""More than any processor package or its memory draws."""

_SLACK_J = 10.0
"""A counter is brought up to date about every millisecond: a reading may hold a little more than its time explains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a counter said: energy [J] since some moment in the past.

    ``breaks`` is how often the counter has lost its thread so far (it went backwards, or did not answer): what was
    consumed between two readings of different ``breaks`` is not known.
    """

    energy_j: float
    breaks: int = 0


class Counter(Protocol):
    """A counter of one device's energy."""

    def read(self) -> Reading:
        """What it says now. Raises MeterFailed."""
        ...


def energy_between(begin: Reading | None, end: Reading | None) -> float:
    """The energy [J] from one reading to a later one; NaN where it is not known."""
    if begin is None or end is None or begin.breaks != end.breaks or end.energy_j < begin.energy_j:
        return math.nan
    return end.energy_j - begin.energy_j


class SteadyCounter:
    """A counter that must never go backwards; where it does (the driver was loaded anew), the thread is lost."""

    def __init__(self, read_j: Callable[[], float]) -> None:
        self._read_j = read_j
        self._last_j = -math.inf
        self._breaks = 0
        self._lock = threading.Lock()

    def read(self) -> Reading:
        """What it says now. Raises MeterFailed."""
        with self._lock:
            energy_j = self._read_j()
            if energy_j < self._last_j:
                self._breaks += 1
            self._last_j = energy_j
            return Reading(energy_j=energy_j, breaks=self._breaks)


class WrappingCounter:
    """A counter that begins again at zero after ``range_j`` joules, as RAPL's do every few minutes or hours.

    Read it at least every ``read_within_s`` seconds: longer after the last reading it may have wrapped twice, and the
    thread is lost. So it is where more than MOST_POWER_W would have had to flow: then the counter was reset.
    """

    def __init__(self, read_j: Callable[[], float], *, range_j: float, clock: Callable[[], float]) -> None:
        self.read_within_s = range_j / MOST_POWER_W
        self._read_j = read_j
        self._range_j = range_j
        self._clock = clock
        self._lock = threading.Lock()
        self._last_j: float | None = None
        self._last_at = 0.0
        self._sum_j = 0.0
        self._breaks = 0

    def read(self) -> Reading:
        """The energy since the first reading. Raises MeterFailed."""
        with self._lock:
            now, value_j = self._clock(), self._read_j()
            if self._last_j is not None:
                self._add(value_j - self._last_j, elapsed_s=now - self._last_at)
            self._last_j, self._last_at = value_j, now
            return Reading(energy_j=self._sum_j, breaks=self._breaks)

    def _add(self, growth_j: float, *, elapsed_s: float) -> None:
        grown_j = growth_j if growth_j >= 0 else growth_j + self._range_j
        if elapsed_s > self.read_within_s or grown_j > MOST_POWER_W * elapsed_s + _SLACK_J:
            self._breaks += 1
        else:
            self._sum_j += grown_j


class PowerIntegral:
    """Energy from samples of power, by the trapezoidal rule."""

    def __init__(self, *, longest_gap_s: float) -> None:
        self._longest_gap_s = longest_gap_s
        self._energy_j = 0.0
        self._breaks = 0
        self._last: tuple[float, float] | None = None

    def add(self, at_s: float, power_w: float) -> Reading:
        """One more sample: the power [W] at a time [s]. After too long a gap the thread is lost."""
        if self._last is not None:
            before_s, before_w = self._last
            if at_s - before_s > self._longest_gap_s:
                self._breaks += 1
            else:
                self._energy_j += (at_s - before_s) * (before_w + power_w) / 2
        self._last = at_s, power_w
        return Reading(energy_j=self._energy_j, breaks=self._breaks)

    def interrupt(self) -> None:
        """A sample is missing."""
        if self._last is not None:
            self._breaks += 1
        self._last = None
