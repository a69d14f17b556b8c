"""Power and energy of all devices of this machine that can be measured, from one look to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bso_client import EnergyMonitor, Measurement
    from bso_client.energy.meters import Survey
    from bso_client.energy.monitor import Unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """One device: its mean power [W] and its energy [J]; None where it could not be measured."""

    device: str
    name: str
    power_w: float | None
    energy_j: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """All devices over the same time [s]. The total [W, J] is that of the GPUs, else of processors and memory.

    It is None where a part of it is unknown, or nothing is readable.
    """

    time_s: float
    devices: tuple[DeviceReading, ...] = ()
    total_power_w: float | None = None
    total_energy_j: float | None = None
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(slots=True)
class Gauge:
    """Looks at the meters again and again, and adds up."""

    monitor: EnergyMonitor
    survey: Survey
    _looks: int = 0
    _time_s: float = 0.0
    _energies: dict[str, float] = field(default_factory=dict)
    _total_j: float = 0.0

    def start(self) -> None:
        """Begin to measure."""
        self.monitor.begin_window("look 0")

    def look(self) -> Readings:
        """Powers since the last look, energies since the start."""
        measured = self._since_last_look()
        self._time_s += measured.time
        self._total_j += measured.total_energy
        readings = []
        for device, name, energy_j in _by_device(measured, self.survey):
            self._energies[device] = self._energies.get(device, 0.0) + energy_j
            power_w = _known(energy_j / measured.time)
            readings.append(
                DeviceReading(device=device, name=name, power_w=power_w, energy_j=_known(self._energies[device]))
            )
        return Readings(
            time_s=self._time_s,
            devices=tuple(readings),
            total_power_w=_known(measured.total_energy / measured.time),
            total_energy_j=_known(self._total_j),
            unreadable=self.survey.unreadable,
        )

    def _since_last_look(self) -> Measurement:
        ended = f"look {self._looks}"
        self._looks += 1
        self.monitor.begin_window(f"look {self._looks}")
        return self.monitor.end_window(ended)


def open_gauge(environ: Mapping[str, str]) -> Gauge | Survey:
    """A gauge of everything that is readable; where nothing is, the survey that says why."""
    from bso_client import EnergyMonitor, NoMeter
    from bso_client.energy.meters import survey
    from bso_client.energy.monitor import Unreadable

    whole_machine = {name: value for name, value in environ.items() if name != "LOCAL_RANK"}
    found = survey(whole_machine)
    if not found.is_any_readable:
        return found
    try:
        monitor = EnergyMonitor([gpu.index for gpu in found.gpus], environ=whole_machine)
    except NoMeter as error:
        failed = Unreadable(device="meters", why=str(error))
        return replace(found, gpus=(), zones=(), unreadable=(*found.unreadable, failed))
    return Gauge(monitor=monitor, survey=found)


def _by_device(measured: Measurement, survey: Survey) -> list[tuple[str, str, float]]:
    names = {gpu.index: gpu.name for gpu in survey.gpus}
    gpus = [(f"GPU {index}", names[index], energy_j) for index, energy_j in measured.gpu_energy.items()]
    processors = [(f"CPU {index}", "package", energy_j) for index, energy_j in (measured.cpu_energy or {}).items()]
    memory = [(f"DRAM {index}", "its memory", energy_j) for index, energy_j in (measured.dram_energy or {}).items()]
    return [*gpus, *processors, *memory]


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
