"""Counters of energy: numbers that grow, until they do not. Rules of what their readings say about a window."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

MOST_POWER_W = 1000.0
"""More than any processor package or its memory draws."""

_SLACK_J = 10.0
"""A counter is brought up to date about every millisecond: a reading may hold a little more than its time explains."""

_LONG_READING_S = 0.001
"""A reading that takes longer, and more than twice as long as the shortest one of its counter, was preempted."""


class DeviceKind(Enum):
    """The kinds of devices; the comment says what their index counts."""

    GPU = "GPU"  # the GPUs that this process sees
    CPU = "CPU"  # processor packages
    DRAM = "DRAM"  # the packages whose memory it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device with a meter."""

    kind: DeviceKind
    index: int

    def __str__(self) -> str:
        return f"{self.kind.value} {self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a counter said at an instant [s]: energy [J] since some moment in the past.

    ``breaks`` is how often the counter has been interrupted so far (it went backwards, or did not answer): what was
    consumed between two readings of different ``breaks`` is not known.
    """

    energy_j: float
    at_s: float
    breaks: int = 0


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


class EnergyCounter:
    """A counter that grows. Where it goes backwards (the driver was loaded anew), its energy is not known.

    With ``range_j`` it begins again at zero after so many joules, as RAPL's do every few minutes or hours. Read it at
    least every ``read_within_s`` seconds: longer after the last reading it may have wrapped twice, and its energy is
    not known; nor where more than MOST_POWER_W would have had to flow: then the counter was reset.
    """

    def __init__(
        self, read_j: Callable[[], float], *, clock: Callable[[], float], range_j: float | None = None
    ) -> None:
        self.read_within_s = math.inf if range_j is None else range_j / MOST_POWER_W
        self._read_j = read_j
        self._range_j = range_j
        self._clock = clock
        self._lock = threading.Lock()
        self._shortest_s = 0.0  # of those that took any time
        self._last_j: float | None = None
        self._last_at_s = 0.0
        self._sum_j = 0.0
        self._breaks = 0

    def read(self) -> Reading:
        """The energy since the first reading. Raises MeterFailed."""
        with self._lock:
            value_j, at_s = self._timed()
            if self._last_j is not None:
                grown_j = self._growth(value_j - self._last_j, elapsed_s=at_s - self._last_at_s)
                self._breaks += grown_j is None
                self._sum_j += grown_j or 0.0
            self._last_j, self._last_at_s = value_j, at_s
            return Reading(energy_j=self._sum_j, at_s=at_s, breaks=self._breaks)

    def _timed(self) -> tuple[float, float]:
        """A value [J], and the instant [s] at which it was read: the middle of the reading.

        A process that was preempted beside the counter reads once more, in a time slice that has just begun. The driver
        of a GPU may take some milliseconds each time: reading once more would only lengthen the gap between windows.
        """
        took_s, at_s, value_j = _timed_once(self._read_j, self._clock)
        if took_s > max(_LONG_READING_S, 2.0 * self._shortest_s):
            took_s, at_s, value_j = min((took_s, at_s, value_j), _timed_once(self._read_j, self._clock))
        self._shortest_s = min(self._shortest_s or took_s, took_s)
        return value_j, at_s

    def _growth(self, growth_j: float, *, elapsed_s: float) -> float | None:
        if self._range_j is None:
            return growth_j if growth_j >= 0 else None
        grown_j = growth_j if growth_j >= 0 else growth_j + self._range_j
        is_reset = elapsed_s > self.read_within_s or grown_j > MOST_POWER_W * elapsed_s + _SLACK_J
        return None if is_reset else grown_j


def _timed_once(read_j: Callable[[], float], clock: Callable[[], float]) -> tuple[float, float, float]:
    began_s = clock()
    value_j = read_j()
    ended_s = clock()
    return ended_s - began_s, (began_s + ended_s) / 2, value_j
