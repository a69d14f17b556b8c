"""The meter of one training: time and energy from its beginning without pauses, and pooled with that of other ranks."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from bso_client.energy.energy_monitor import EnergyMonitor
from bso_client.energy.monitor import Measured, Measurement, Monitor
from bso_client.training.state import Consumption

logger = logging.getLogger("bso")

_WAY_OUT = ": without monitor= the optimizer measures by itself, or assumes the energy where it cannot"
_window_numbers = itertools.count(1)

_CLOCKS_DIFFER_BY = 0.001
"""How much clocks of one machine may differ, per second and beside that in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """When a call of the monitor began and ended [s]. The instant at which it read its meters lies between."""

    began_s: float
    ended_s: float


class Meter:
    """Adds up windows of time and energy. A monitor that fails makes the energy unknown, never the training fail.

    The time of a window is the monitor's own, from the same instants as its energy. Where that cannot be right (the
    clock of the machine was set, which a ZeusMonitor reads), it is the time between the ends of both calls.

    A monitor whose windows can be paused, as an EnergyMonitor's, measures a training in one window, which is paused
    between ``stop`` and ``start``: what a counter grows by while a training reports belongs to what it did before.
    """

    def __init__(
        self,
        monitor: Monitor,
        *,
        before: Consumption | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monitor = monitor
        self._clock = clock
        self._consumed = before or Consumption()
        self._key = f"bso-{next(_window_numbers)}"
        self._begun: _Call | None = None
        self._is_measured = True
        self._is_paused = False
        self._seen: Measured | None = None  # of the paused window

    @property
    def is_running(self) -> bool:
        """Whether a window is open."""
        return self._begun is not None

    def start(self) -> None:
        """Open a window; without effect if one is open."""
        if self.is_running:
            return
        called_s = self._clock()
        self._is_measured = self._try_to_begin()
        self._begun = _Call(began_s=called_s, ended_s=self._clock())

    def stop(self, *, is_pause: bool = False) -> Consumption:
        """Close the window, if one is open, and return the consumption so far.

        ``is_pause``: the training does something else from now on, and does not only report.
        """
        self._is_paused |= is_pause
        if self._begun is not None:
            begun, self._begun = self._begun, None
            called_s = self._clock()
            time_s, energy_j = self._measured()
            ended = _Call(began_s=called_s, ended_s=self._clock())
            self._consumed = self._consumed.plus(
                time_s=_time_between(begun, ended, measured_s=time_s), energy_j=energy_j
            )
        return self._consumed

    @property
    def consumed(self) -> Consumption:
        """The consumption up to the last closed window."""
        return self._consumed

    def _try_to_begin(self) -> bool:
        try:
            pausing = _pausing(self._monitor)
            if pausing is not None and self._seen is not None:
                pausing.resume_window(self._key, is_bridged=not self._is_paused)
            else:
                self._monitor.begin_window(self._key)
            self._is_paused = False
        except Exception as error:  # noqa: BLE001  # somebody else's monitor must not end a training
            self._complain(f"the energy monitor failed ({error!r})")
            return False
        return True

    def _measured(self) -> tuple[float, float | None]:
        """Time [s] and energy [J] as the monitor has measured them; NaN and None where it has not."""
        if not self._is_measured:
            return math.nan, None
        try:
            pausing = _pausing(self._monitor)
            if pausing is not None:
                time_s, energy_j = self._since_last(pausing.pause_window(self._key))
            else:
                measured = self._monitor.end_window(self._key)
                time_s, energy_j = _time_of(measured), total_energy_j(measured)
        except Exception as error:  # noqa: BLE001  # somebody else's monitor must not end a training
            self._complain(f"the energy monitor failed ({error!r})")
            return math.nan, None
        if not math.isfinite(energy_j) or energy_j < 0:
            self._complain(f"the energy monitor measured {energy_j} J")
            return time_s, None
        return time_s, energy_j

    def close(self) -> None:
        """Let the monitor forget the training, which has ended."""
        if self._seen is not None and (pausing := _pausing(self._monitor)) is not None:
            with contextlib.suppress(Exception):  # somebody has reset its windows
                pausing.end_window(self._key)
        self._seen = None

    def _since_last(self, measured: Measured) -> tuple[float, float]:
        """Time [s] and energy [J] since the window was paused last."""
        seen, self._seen = self._seen, measured
        if seen is None:
            return measured.time, measured.total_energy
        return measured.time - seen.time, measured.total_energy - seen.total_energy

    def _complain(self, what: str) -> None:
        if self._consumed.energy_j is not None:
            logger.warning(
                "%s: the energy of this trial counts as not measured, so its cost is not learnt (unless eta_knob is 0)"
                "%s",
                what,
                "" if isinstance(self._monitor, EnergyMonitor) else _WAY_OUT,
                extra={"action": "unmeasured"},
            )


class _Pausing(Monitor, Protocol):
    """A monitor whose windows can be paused."""

    def pause_window(self, key: str, /) -> Measured: ...
    def resume_window(self, key: str, /, *, is_bridged: bool) -> None: ...


def _pausing(monitor: Any) -> _Pausing | None:
    """The monitor, if its windows can be paused, and no subclass of somebody's measures in another way."""
    is_own = not isinstance(monitor, EnergyMonitor) or type(monitor).end_window is EnergyMonitor.end_window
    return cast(_Pausing, monitor) if is_own and hasattr(monitor, "pause_window") else None


def total_energy_j(measured: Measured) -> float:
    """The total energy [J] of whatever monitor. NaN where it knows GPUs, measured none, and nothing else either.

    A ZeusMonitor on a machine without a GPU sums up no GPUs to 0 J, and holds processors and memory beside them. An
    EnergyMonitor that measures no device has nothing to count: other ranks count its GPUs.
    """
    if isinstance(measured, Measurement) or getattr(measured, "gpu_energy", None) != {}:
        return float(measured.total_energy)
    processors, memory = getattr(measured, "cpu_energy", None), getattr(measured, "dram_energy", None)
    if processors is None:
        return math.nan
    return float(sum(processors.values()) + sum((memory or {}).values()))


def _time_of(measured: Measured) -> float:
    """The time [s] of somebody's measurement; NaN where it has none."""
    try:
        return float(getattr(measured, "time", math.nan))
    except (TypeError, ValueError):
        return math.nan


def _time_between(begun: _Call, ended: _Call, *, measured_s: float) -> float:
    """The measured time [s] if its two instants can lie within the two calls, else that from the end of both calls."""
    least_s, most_s = ended.began_s - begun.ended_s, ended.ended_s - begun.began_s
    slack_s = _CLOCKS_DIFFER_BY * (1 + most_s)
    if max(0.0, least_s - slack_s) <= measured_s <= most_s + slack_s:
        return measured_s
    return max(0.0, ended.ended_s - begun.ended_s)


class PooledMeter:
    """This rank's meter, and the consumption of all ranks as of their last exchange.

    Between two exchanges the other ranks are taken to consume in proportion to this one, as they did so far.
    """

    def __init__(self, own: Meter, *, before: Consumption, size: int) -> None:
        self.own = own
        self._before = before
        self._size = size
        self._pooled = Consumption()
        self._own_then = Consumption()

    @property
    def is_running(self) -> bool:
        """Whether a window is open."""
        return self.own.is_running

    @property
    def consumed(self) -> Consumption:
        """The consumption of all ranks, up to this rank's last closed window."""
        own, then, pooled = self.own.consumed, self._own_then, self._pooled
        total = pooled.plus(time_s=own.time_s - then.time_s, energy_j=self._energy_since(own, then, pooled))
        return self._before.plus(time_s=total.time_s, energy_j=total.energy_j)

    def start(self) -> None:
        """Open a window; without effect if one is open."""
        self.own.start()

    def stop(self, *, is_pause: bool = False) -> Consumption:
        """Close the window, if one is open; the consumption of all ranks. See Meter.stop."""
        self.own.stop(is_pause=is_pause)
        return self.consumed

    def pool(self, of_ranks: Sequence[Consumption]) -> None:
        """Take what all ranks have consumed, each up to its last closed window, as they say when they meet."""
        energies = [each.energy_j for each in of_ranks]
        known = [energy_j for energy_j in energies if energy_j is not None]
        self._pooled = Consumption(
            time_s=max(each.time_s for each in of_ranks),
            energy_j=sum(known) if len(known) == len(energies) else None,
        )
        self._own_then = self.own.consumed

    def _energy_since(self, own: Consumption, then: Consumption, pooled: Consumption) -> float | None:
        if own.energy_j is None or then.energy_j is None or pooled.energy_j is None:
            return None
        proportion = pooled.energy_j / then.energy_j if then.energy_j > 0 else float(self._size)
        return (own.energy_j - then.energy_j) * proportion
