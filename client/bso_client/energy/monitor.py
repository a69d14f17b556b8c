"""Energy monitors: what the client needs of one, what it measures, and why there may be none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from bso.domain.errors import Misconfigured
from bso.domain.hardware import EnergyMethod

DEFAULT_POWER_W = 1.0


class Measured(Protocol):
    """What was measured between the beginning and the end of a window."""

    @property
    def time(self) -> float:
        """Seconds, between the same instants as the energy."""
        ...

    @property
    def total_energy(self) -> float:
        """Joules, of all devices together. NaN or a negative number: the window could not be measured."""
        ...


class Monitor(Protocol):
    """Measures time [s] and energy [J] between two calls. Windows of different keys may overlap.

    bso_client.EnergyMonitor is one, zeus.monitor.ZeusMonitor fits as it is, and so does an object of one's own.
    """

    def begin_window(self, key: str, /) -> Any:
        """Begin to measure under this key."""
        ...

    def end_window(self, key: str, /) -> Measured:
        """End the window of this key, and return what was measured."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Time [s] and energy [J] between begin_window and end_window; NaN where a meter failed meanwhile.

    ``gpu_energy`` by the index of the GPU as the training sees it (after CUDA_VISIBLE_DEVICES); ``cpu_energy`` by
    processor package; ``dram_energy`` by the package whose memory it is, None where the processor does not report it.
    The names are those of Zeus' Measurement.
    """

    time: float
    gpu_energy: dict[int, float] = field(default_factory=dict)
    cpu_energy: dict[int, float] | None = None
    dram_energy: dict[int, float] | None = None
    method: EnergyMethod

    @property
    def total_energy(self) -> float:
        """The energy [J] that counts: of the GPUs where there are some, else of processors and memory.

        NaN where a part of it could not be measured.
        """
        if self.gpu_energy:
            return float(sum(self.gpu_energy.values()))
        return float(sum((self.cpu_energy or {}).values()) + sum((self.dram_energy or {}).values()))


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


class NoMeter(Misconfigured):
    """No energy meter is readable here; the message names each that was looked for, and what to do about it."""


class MeterFailed(Misconfigured):
    """A meter that could be read before no longer can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A meter that was looked for: why it cannot be read, and what to do about it.

    ``is_in_use``: the training runs on this device all the same, so no other meter may stand in for it. Then
    ``model`` and ``memory_mib`` [MiB] are what is known of it.
    """

    device: str
    why: str
    advice: str = ""
    is_in_use: bool = False
    model: str = ""
    memory_mib: int | None = None

    def __str__(self) -> str:
        return f"{self.device}: {self.why}{f' ({self.advice})' if self.advice else ''}"
