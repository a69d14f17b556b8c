"""The meter of one training: time and energy from its beginning, pauses left out."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from bso_client.energy.energy_monitor import EnergyMonitor
from bso_client.energy.measurement import total_energy_j
from bso_client.energy.monitor import Monitor

logger = logging.getLogger("bso")

_WAY_OUT = ": without monitor= the optimizer measures by itself, or assumes the energy where it cannot"
_window_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """What a training has consumed so far. ``energy_j`` is None once a part of it could not be measured."""

    time_s: float = 0.0
    energy_j: float | None = 0.0

    def plus(self, *, time_s: float, energy_j: float | None) -> Consumption:
        """This and what one more window measured."""
        total = None if self.energy_j is None or energy_j is None else self.energy_j + energy_j
        return Consumption(time_s=self.time_s + time_s, energy_j=total)


class Meter:
    """Adds up windows of time and energy. A monitor that fails makes the energy unknown, never the training fail."""

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
        self._began_at: float | None = None
        self._is_measured = True

    @property
    def is_running(self) -> bool:
        """Whether a window is open."""
        return self._began_at is not None

    def start(self) -> None:
        """Open a window; without effect if one is open."""
        if self.is_running:
            return
        self._is_measured = self._try_to_begin()
        self._began_at = self._clock()

    def stop(self) -> Consumption:
        """Close the window, if one is open, and tell the consumption so far."""
        if self._began_at is not None:
            began_at, self._began_at = self._began_at, None
            energy_j = self._measured_energy_j()  # first: the monitor may wait for what the GPU has still to do
            time_s = max(0.0, self._clock() - began_at)
            self._consumed = self._consumed.plus(time_s=time_s, energy_j=energy_j)
        return self._consumed

    @property
    def consumed(self) -> Consumption:
        """The consumption up to the last closed window."""
        return self._consumed

    def _try_to_begin(self) -> bool:
        try:
            self._monitor.begin_window(self._key)
        except Exception as error:  # noqa: BLE001  # somebody else's monitor must not end a training
            self._complain(f"the energy monitor failed ({error!r})")
            return False
        return True

    def _measured_energy_j(self) -> float | None:
        if not self._is_measured:
            return None
        try:
            energy_j = total_energy_j(self._monitor.end_window(self._key))
        except Exception as error:  # noqa: BLE001  # somebody else's monitor must not end a training
            self._complain(f"the energy monitor failed ({error!r})")
            return None
        if not math.isfinite(energy_j) or energy_j < 0:
            self._complain(f"the energy monitor measured {energy_j} J")
            return None
        return energy_j

    def _complain(self, what: str) -> None:
        if self._consumed.energy_j is not None:
            logger.warning(
                "%s: the energy of this trial counts as not measured, so its cost is not learnt (unless eta_knob is 0)"
                "%s",
                what,
                "" if isinstance(self._monitor, EnergyMonitor) else _WAY_OUT,
                extra={"action": "unmeasured"},
            )
