"""Counters of energy: numbers that grow, until they do not. Rules of what their readings tell."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bso_client.energy.errors import MeterFailed

MOST_POWER_W = 1000.0
"""More than any processor package or its memory draws."""

_SLACK_J = 10.0
"""A counter is brought up to date about every millisecond: a reading may hold a little more than its time explains."""

_LONG_READING_S = 0.001
"""A reading that takes longer was preempted, or its driver is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a counter said at an instant [s]: energy [J] since some moment in the past.

    ``breaks`` is how often the counter has been interrupted so far (it went backwards, or did not answer): what was
    consumed between two readings of different ``breaks`` is not known.
    """

    energy_j: float
    at_s: float
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


def energy_of_window(begin: Reading | None, end: Reading | None, *, window_s: float) -> float:
    """The energy [J] of a window of this length [s], which lies between two readings; NaN where it is not known.

    What was counted before and after the window is taken off at the mean power between the readings.
    """
    energy_j = energy_between(begin, end)
    if begin is None or end is None or end.at_s <= begin.at_s:
        return energy_j
    return energy_j * (window_s / (end.at_s - begin.at_s))


class SteadyCounter:
    """A counter that must never go backwards; where it does (the driver was loaded anew), the thread is lost."""

    def __init__(self, read_j: Callable[[], float], *, clock: Callable[[], float]) -> None:
        self._read_j = read_j
        self._clock = clock
        self._last_j = -math.inf
        self._breaks = 0
        self._lock = threading.Lock()

    def read(self) -> Reading:
        """What it says now. Raises MeterFailed."""
        with self._lock:
            energy_j, at_s = _timed(self._read_j, self._clock)
            if energy_j < self._last_j:
                self._breaks += 1
            self._last_j = energy_j
            return Reading(energy_j=energy_j, at_s=at_s, breaks=self._breaks)


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
        self._last_at_s = 0.0
        self._sum_j = 0.0
        self._breaks = 0

    def read(self) -> Reading:
        """The energy since the first reading. Raises MeterFailed."""
        with self._lock:
            value_j, at_s = _timed(self._read_j, self._clock)
            if self._last_j is not None:
                self._add(value_j - self._last_j, elapsed_s=at_s - self._last_at_s)
            self._last_j, self._last_at_s = value_j, at_s
            return Reading(energy_j=self._sum_j, at_s=at_s, breaks=self._breaks)

    def _add(self, growth_j: float, *, elapsed_s: float) -> None:
        grown_j = growth_j if growth_j >= 0 else growth_j + self._range_j
        if elapsed_s > self.read_within_s or grown_j > MOST_POWER_W * elapsed_s + _SLACK_J:
            self._breaks += 1
        else:
            self._sum_j += grown_j


def _timed(read_j: Callable[[], float], clock: Callable[[], float]) -> tuple[float, float]:
    """A value [J], and the instant [s] at which it was read: the middle of the reading.

    Whoever was preempted beside the counter reads once more, in a time slice that has just begun.
    """
    took_s, at_s, value_j = _timed_once(read_j, clock)
    if took_s > _LONG_READING_S:
        took_s, at_s, value_j = min((took_s, at_s, value_j), _timed_once(read_j, clock))
    return value_j, at_s


def _timed_once(read_j: Callable[[], float], clock: Callable[[], float]) -> tuple[float, float, float]:
    began_s = clock()
    value_j = read_j()
    ended_s = clock()
    return ended_s - began_s, (began_s + ended_s) / 2, value_j


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """A power [W] at an instant [s], and the energy [J] and breaks up to it."""

    at_s: float
    power_w: float
    energy_j: float
    breaks: int


class PowerIntegral:
    """Energy from samples of power, which is taken to be linear between them: at any instant of the last ``kept_s``."""

    def __init__(self, *, longest_gap_s: float, kept_s: float) -> None:
        self._longest_gap_s = longest_gap_s
        self._kept_s = kept_s
        self._breaks = 0
        self._is_interrupted = False
        self._samples: deque[_Sample] = deque()

    def add(self, at_s: float, power_w: float) -> None:
        """One more sample: the power [W] at an instant [s]. After too long a gap the thread is lost."""
        energy_j = 0.0
        if self._samples:
            last = self._samples[-1]
            energy_j = last.energy_j
            if not self._is_interrupted and at_s - last.at_s > self._longest_gap_s:
                self._breaks += 1
            if last.breaks == self._breaks:
                energy_j += (at_s - last.at_s) * (last.power_w + power_w) / 2
        self._is_interrupted = False
        self._samples.append(_Sample(at_s=at_s, power_w=power_w, energy_j=energy_j, breaks=self._breaks))
        self._forget(before_s=at_s - self._kept_s)

    def interrupt(self) -> None:
        """A sample is missing."""
        if self._samples and not self._is_interrupted:
            self._breaks += 1
            self._is_interrupted = True

    def reaches(self, at_s: float) -> bool:
        """Whether an instant [s] is not after the last sample."""
        return bool(self._samples) and at_s <= self._samples[-1].at_s

    def at(self, at_s: float) -> Reading:
        """The energy up to an instant [s]. Raises MeterFailed where it lies in a gap, or outside of what is kept."""
        later: _Sample | None = None
        for sample in reversed(self._samples):
            if sample.at_s <= at_s:
                return _interpolated(sample, later, at_s)
            later = sample
        raise MeterFailed("the power of that time is not kept any more")

    def _forget(self, *, before_s: float) -> None:
        while len(self._samples) > 1 and self._samples[1].at_s <= before_s:
            self._samples.popleft()


def _interpolated(sample: _Sample, later: _Sample | None, at_s: float) -> Reading:
    """The reading at an instant between two samples, or at that of the first one."""
    since_s = at_s - sample.at_s
    energy_j = sample.energy_j
    if since_s > 0:
        if later is None or later.breaks != sample.breaks:
            raise MeterFailed("the power was not sampled at that time")
        slope = (later.power_w - sample.power_w) / (later.at_s - sample.at_s)
        energy_j += since_s * (sample.power_w + slope * since_s / 2)
    return Reading(energy_j=energy_j, at_s=at_s, breaks=sample.breaks)
