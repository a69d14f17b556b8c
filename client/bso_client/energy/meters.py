"""The meters of this process: which ones the environment asks for, opened to measure, or surveyed for people."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from bso.domain.hardware import EnergyMethod
from bso_client.energy.counters import Device, DeviceKind, EnergyCounter
from bso_client.energy.gpus import GpuMeters, counts_processors, find_gpus, own_gpu_indices, unreadable_gpu
from bso_client.energy.monitor import MeterFailed, NoMeter, Unreadable
from bso_client.energy.nvml import Gpu
from bso_client.energy.rapl import CpuMeters, Zone, find_processors, keep_reading
from bso_client.errors import InvalidSetting

logger = logging.getLogger("bso")

DEVICE_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "BSO_POWERCAP_DIR",
)
"""What the environment says of this process' devices."""

NOTICE_GIVEN, ENERGY_ASSUMED = "BSO_NOTICE_GIVEN", "energy_assumed"
"""The variable in which `bso recur` names a notice that the launches after the first need not repeat."""


class EnergySetting(Enum):
    """The values of BSO_ENERGY."""

    AUTO = "auto"  # measured where a meter is readable, assumed otherwise
    ASSUMED = "assumed"  # constant power times time, whatever is readable


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteringSettings:
    """What the environment says of energy: BSO_ENERGY, and what concerns devices.

    ``is_notice_given``: `bso recur` has seen that energy is assumed here, so an earlier launch has warned of it.
    """

    energy: EnergySetting
    devices: Mapping[str, str]
    is_notice_given: bool = False


def read_metering_settings(environ: Mapping[str, str]) -> MeteringSettings:
    """Read the environment. Raises InvalidSetting."""
    word = environ.get("BSO_ENERGY") or EnergySetting.AUTO.value
    known = [each.value for each in EnergySetting]
    if word not in known:
        raise InvalidSetting(f"BSO_ENERGY must be one of {', '.join(known)}, got {word!r}")
    devices = {name: environ[name] for name in DEVICE_VARIABLES if name in environ}
    is_notice_given = environ.get(NOTICE_GIVEN) == ENERGY_ASSUMED
    return MeteringSettings(energy=EnergySetting(word), devices=devices, is_notice_given=is_notice_given)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMeters:
    """The counters of the chosen devices.

    ``resources`` lets go of them. ``is_counted_elsewhere``: this process trains on GPUs, all of which other ranks of
    this machine count.
    """

    gpus: Mapping[int, Gpu]
    zones: tuple[Zone, ...]
    counters: Mapping[Device, EnergyCounter]
    method: EnergyMethod
    is_counted_elsewhere: bool
    resources: contextlib.ExitStack


def open_meters(
    gpu_indices: Collection[int] | None,
    cpu_indices: Collection[int] | None,
    *,
    environ: Mapping[str, str],
    rapl_root: Path | None,
    clock: Callable[[], float],
) -> OpenMeters:
    """The counters of the chosen devices; None chooses this process' own. Raises NoMeter, InvalidSetting."""
    with contextlib.ExitStack() as resources:
        found, processors = find_gpus(environ), find_processors(environ, root=rapl_root)
        resources.callback(found.close)
        gpus = _chosen_gpus(found, gpu_indices, environ)
        zones = _chosen_zones(processors, cpu_indices)
        is_counted_elsewhere = not gpus and bool(found.gpus) and gpu_indices is None
        if not gpus and not zones and not is_counted_elsewhere:
            reasons = [str(each) for each in (found.unreadable, processors.unreadable) if each is not None]
            raise NoMeter("no energy meter is readable: " + "; ".join(reasons or ["none was chosen"]))
        counted = zones if counts_processors(environ) else ()
        return OpenMeters(
            gpus=gpus,
            zones=zones,
            counters=_gpu_counters(gpus, clock) | _zone_counters(counted, clock, resources),
            method=EnergyMethod.NVML_COUNTER if gpus or is_counted_elsewhere else EnergyMethod.RAPL,
            is_counted_elsewhere=is_counted_elsewhere,
            resources=resources.pop_all(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableGpu:
    """A GPU whose energy can be measured. ``index`` is as a training counts, after CUDA_VISIBLE_DEVICES."""

    index: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a process with this environment can measure, and what not."""

    gpus: tuple[ReadableGpu, ...]
    zones: tuple[Zone, ...]
    unreadable: tuple[Unreadable, ...]

    @property
    def is_any_readable(self) -> bool:
        """Whether anything can be measured."""
        return bool(self.gpus or self.zones)


def survey(environ: Mapping[str, str]) -> Survey:
    """Look at every meter once. Raises nothing."""
    processors = find_processors(environ)
    with contextlib.closing(find_gpus(environ)) as found:
        readable, unreadable = _sorted_out(found)
    rest = [each for each in (found.unreadable, processors.unreadable) if each is not None]
    return Survey(gpus=tuple(readable), zones=processors.zones, unreadable=(*unreadable, *rest))


def _chosen_gpus(found: GpuMeters, chosen: Collection[int] | None, environ: Mapping[str, str]) -> dict[int, Gpu]:
    if chosen is None and found.unreadable is not None and found.unreadable.is_in_use:
        raise NoMeter(f"the energy of this training cannot be measured: {found.unreadable}")
    indices = own_gpu_indices(environ, len(found.gpus)) if chosen is None else chosen
    _check("gpu_indices", indices, range(len(found.gpus)), found.unreadable)
    if not found.are_numbers_certain and ("CUDA_VISIBLE_DEVICES" in environ or len(indices) < len(found.gpus)):
        _warn_of_numbers([found.gpus[index] for index in indices])
    return {index: found.gpus[index] for index in indices}


def _warn_of_numbers(gpus: Sequence[Gpu]) -> None:
    logger.warning(
        "the GPUs of this machine differ, and CUDA may count them in another order: measuring %s. Set "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID, so that CUDA counts as is done here, or name GPUs by UUID in "
        "CUDA_VISIBLE_DEVICES",
        ", ".join(f"{gpu.name} ({gpu.uuid})" for gpu in gpus),
        extra={"action": "device_order_unknown"},
    )


def _chosen_zones(found: CpuMeters, chosen: Collection[int] | None) -> tuple[Zone, ...]:
    if chosen is None:
        return found.zones
    _check("cpu_indices", chosen, {zone.package for zone in found.zones}, found.unreadable)
    return tuple(zone for zone in found.zones if zone.package in chosen)


def _check(name: str, chosen: Collection[int], there: Collection[int], why_not: object) -> None:
    missing = [index for index in chosen if index not in there]
    if missing:
        known = ", ".join(map(str, sorted(there))) or f"none ({why_not})"
        raise InvalidSetting(f"{name} names {missing}; there are {known}")


def _gpu_counters(gpus: Mapping[int, Gpu], clock: Callable[[], float]) -> dict[Device, EnergyCounter]:
    for gpu in gpus.values():
        try:
            gpu.energy_j()
        except MeterFailed as error:
            raise NoMeter(f"the energy of this training cannot be measured: {unreadable_gpu(gpu, error)}") from error
    return {
        Device(kind=DeviceKind.GPU, index=index): EnergyCounter(gpu.energy_j, clock=clock)
        for index, gpu in gpus.items()
    }


def _zone_counters(
    zones: Sequence[Zone], clock: Callable[[], float], resources: contextlib.ExitStack
) -> dict[Device, EnergyCounter]:
    counters = {zone.device: zone.counter(clock) for zone in zones}
    if counters:
        is_over = threading.Event()
        resources.callback(is_over.set)
        arguments = (tuple(counters.values()), is_over)
        threading.Thread(target=keep_reading, args=arguments, name="bso RAPL", daemon=True).start()
    return dict(counters)


def _sorted_out(found: GpuMeters) -> tuple[list[ReadableGpu], list[Unreadable]]:
    readable, unreadable = [], []
    for index, gpu in enumerate(found.gpus):
        try:
            gpu.energy_j()
        except MeterFailed as error:
            unreadable.append(unreadable_gpu(gpu, error))
        else:
            readable.append(ReadableGpu(index=index, name=gpu.name))
    return readable, unreadable
