"""Energy of several ranks: which devices a monitor measures, and a monitor that leaves out what others count."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from bso_client.energy import EnergyMonitor
from bso_client.energy.gpus import find_gpus
from bso_client.energy.monitor import AssumedEnergy, Measured, Monitor
from bso_client.errors import InvalidSetting
from bso_client.processes import boot_id


def machine_name() -> str:
    """A name for this machine that all its containers share."""
    return boot_id() or platform.node()


def is_counted_elsewhere(monitor: Monitor | None) -> bool:
    """Whether the monitor has nothing to count, since other ranks count the GPUs that this one shares with them."""
    return isinstance(monitor, EnergyMonitor) and monitor.is_counted_elsewhere


def devices_of(monitor: Monitor | None, environ: Mapping[str, str], *, machine: str) -> tuple[str, ...]:
    """The devices that a monitor measures, in its own order; none where it does not say so."""
    if is_counted_elsewhere(monitor):
        return ()
    if isinstance(monitor, EnergyMonitor) and not monitor.gpus:
        return tuple(f"{machine} {'DRAM' if zone.is_memory else 'CPU'} {zone.package}" for zone in monitor.zones)
    indices = getattr(monitor, "gpu_indices", None)
    if not indices:  # a ZeusMonitor without GPUs measures processors
        return tuple(f"{machine} CPU {index}" for index in getattr(monitor, "cpu_indices", None) or ())
    names = _gpu_names(environ)
    return tuple(names.get(index, f"{machine} GPU {index}") for index in indices)


def counting(monitor: Monitor, devices: Sequence[str], counted: Sequence[str]) -> Monitor:
    """The monitor, or one in its place that counts only some of its devices, and measures nothing if there are none.

    Raises InvalidSetting where ranks share some but not all of their processors: those cannot be distinguished.
    """
    if len(counted) == len(devices):
        return monitor
    if not counted:
        return NothingToCount()
    indices: Sequence[int] = getattr(monitor, "gpu_indices", ())
    if not indices:
        raise InvalidSetting(
            f"this rank measures {', '.join(devices)}, and other ranks only a part of them: let ranks of one machine "
            "measure the same processors (each is then counted once), or different ones"
        )
    some = [index for index, device in zip(indices, devices, strict=True) if device in counted]
    return SomePausableGpus(monitor, some) if isinstance(monitor, EnergyMonitor) else SomeGpus(monitor, some)


class NothingToCount:
    """Measures 0 J: other ranks count the devices of this one."""

    def begin_window(self, key: str, /) -> None:
        """Nothing."""

    def end_window(self, key: str, /) -> Measured:
        """No energy."""
        return AssumedEnergy(time=0.0, total_energy=0.0)


class SomeGpus:
    """Counts some of the GPUs that a monitor measures; it must report the energy of each, as ``gpu_energy``."""

    def __init__(self, monitor: Monitor, indices: Sequence[int]) -> None:
        self._monitor = monitor
        self._indices = tuple(indices)

    def begin_window(self, key: str, /) -> None:
        """Begin to measure under this key."""
        self._monitor.begin_window(key)

    def end_window(self, key: str, /) -> Measured:
        """End the window of this key, and return the energy of the counted GPUs."""
        return self._counted(self._monitor.end_window(key))

    def _counted(self, measured: Any) -> Measured:
        energy_j = sum(float(measured.gpu_energy[index]) for index in self._indices)
        return AssumedEnergy(time=measured.time, total_energy=energy_j)


class SomePausableGpus(SomeGpus):
    """The same, of a monitor whose windows can be paused."""

    def __init__(self, monitor: EnergyMonitor, indices: Sequence[int]) -> None:
        super().__init__(monitor, indices)
        self._pausing = monitor

    def pause_window(self, key: str, /) -> Measured:
        """See EnergyMonitor.pause_window."""
        return self._counted(self._pausing.pause_window(key))

    def resume_window(self, key: str, /, *, is_bridged: bool) -> None:
        """See EnergyMonitor.resume_window."""
        self._pausing.resume_window(key, is_bridged=is_bridged)


def _gpu_names(environ: Mapping[str, str]) -> dict[int, str]:
    with contextlib.closing(find_gpus(environ)) as found:
        return {index: gpu.uuid for index, gpu in enumerate(found.gpus)}
