"""No meter: energy is assumed to be constant power times time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

DEFAULT_POWER_W = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedEnergy:
    """The energy of a window under the assumption of a constant power."""

    time: float
    total_energy: float


class ConstantPowerMonitor:
    """Assumes ``power_w`` at all times: costs are then proportional to time, whatever eta_knob says."""

    def __init__(self, power_w: float = DEFAULT_POWER_W, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.power_w = power_w
        self._clock = clock
        self._began_at: dict[str, float] = {}

    def begin_window(self, key: str, /) -> None:
        """Note the time."""
        self._began_at[key] = self._clock()

    def end_window(self, key: str, /) -> AssumedEnergy:
        """Multiply the time since begin_window with the power."""
        elapsed_s = self._clock() - self._began_at.pop(key)
        return AssumedEnergy(time=elapsed_s, total_energy=elapsed_s * self.power_w)
