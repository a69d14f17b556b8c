"""The energy counters of processors and memory (RAPL), as Linux' powercap folder shows them."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bso_client.energy.counters import Device, DeviceKind, EnergyCounter
from bso_client.energy.monitor import MeterFailed, Unreadable

POWERCAP = Path("/sys/class/powercap")

_LONGEST_INTERVAL_S = 60.0

_PACKAGE = re.compile(r"intel-rapl:(\d+)")  # AMD's processors have the same names; intel-rapl-mmio counts again


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """A processor package, or the memory (DRAM) that belongs to one. ``package`` is the number in the folder's name.

    ``max_power_w`` is the largest power [W] that can be allowed to it, None where the processor does not report it.
    """

    name: str
    package: int
    folder: Path
    range_j: float
    max_power_w: float | None

    @property
    def is_memory(self) -> bool:
        """Whether it is memory, not a processor."""
        return self.name == "dram"

    @property
    def device(self) -> Device:
        """The device that it measures."""
        return Device(kind=DeviceKind.DRAM if self.is_memory else DeviceKind.CPU, index=self.package)

    def energy_j(self) -> float:
        """What its counter says [J], from 0 to ``range_j``. Raises MeterFailed."""
        path = self.folder / "energy_uj"
        try:
            return int(path.read_text(encoding="ascii")) / 1e6
        except PermissionError as error:
            raise MeterFailed(f"{path} is readable by root only") from error
        except (OSError, ValueError) as error:
            raise MeterFailed(f"{path} cannot be read: {error}") from error

    def counter(self, clock: Callable[[], float]) -> EnergyCounter:
        """A counter that goes on where this one begins again."""
        return EnergyCounter(self.energy_j, clock=clock, range_j=self.range_j)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuMeters:
    """The readable zones of processors and memory, and why there are none."""

    zones: tuple[Zone, ...]
    unreadable: Unreadable | None = None


def find_processors(environ: Mapping[str, str], *, root: Path | None = None) -> CpuMeters:
    """The processors' and memory's counters that this process may read. Raises nothing."""
    folder = root or Path(environ.get("BSO_POWERCAP_DIR") or POWERCAP)
    zones = find_zones(folder)
    if not zones:
        why = f"no energy counters (RAPL) in {folder}: the processor, a virtual machine or a container hides them"
        advice = "in a container, mount the host's /sys/devices/virtual/powercap/intel-rapl and name it with "
        return CpuMeters(zones=(), unreadable=Unreadable(device="CPU", why=why, advice=f"{advice}BSO_POWERCAP_DIR"))
    readable, failure = [], None
    for zone in zones:
        try:
            zone.energy_j()
        except MeterFailed as error:
            failure = error
        else:
            readable.append(zone)
    if any(not zone.is_memory for zone in readable):
        return CpuMeters(zones=tuple(readable))
    advice = f"sudo chmod a+r {folder}/intel-rapl:*/energy_uj lasts until the next boot"
    return CpuMeters(zones=(), unreadable=Unreadable(device="CPU", why=str(failure), advice=advice))


def find_zones(root: Path = POWERCAP) -> tuple[Zone, ...]:
    """Packages and their memory, whether or not they are readable, by package.

    The platform's zone (psys) is left out: it counts the packages again.
    """
    packages = [(int(fits[1]), path) for path in _folders(root) if (fits := _PACKAGE.fullmatch(path.name))]
    return tuple(zone for number, path in sorted(packages) for zone in _zones_of(number, path))


def keep_reading(counters: Sequence[EnergyCounter], is_over: threading.Event) -> None:
    """Read counters often enough that none wraps twice unseen, until it is over."""
    interval_s = min(_LONGEST_INTERVAL_S, *(counter.read_within_s / 4 for counter in counters))
    while not is_over.wait(interval_s):
        for counter in counters:
            with contextlib.suppress(MeterFailed):  # the end of a window reports it
                counter.read()


def _zones_of(package: int, folder: Path) -> Iterator[Zone]:
    for path in (folder, *sorted(_folders(folder))):
        zone = _zone(package, path)
        if zone is not None and (zone.name == "dram" or (path is folder and zone.name.startswith("package"))):
            yield zone


def _zone(package: int, folder: Path) -> Zone | None:
    try:
        name = (folder / "name").read_text(encoding="utf-8").strip()
        range_j = int((folder / "max_energy_range_uj").read_text(encoding="ascii")) / 1e6
    except (OSError, ValueError):
        return None
    return Zone(name=name, package=package, folder=folder, range_j=range_j, max_power_w=_max_power_w(folder))


def _max_power_w(folder: Path) -> float | None:
    found = [power_w for path in sorted(folder.glob("constraint_*_max_power_uw")) if (power_w := _watts(path)) > 0]
    return max(found, default=None)


def _watts(path: Path) -> float:
    try:
        return int(path.read_text(encoding="ascii")) / 1e6
    except (OSError, ValueError):  # ENODATA where the processor does not report it
        return 0.0


def _folders(root: Path) -> list[Path]:
    try:
        return [path for path in root.iterdir() if path.name.startswith("intel-rapl") and path.is_dir()]
    except OSError:
        return []
