"""Opens the meters of this process' devices, with what they need: NVML, a helper process, a thread."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bso.domain.hardware import EnergyMethod
from bso_client.energy.counters import Counter, SteadyCounter, WrappingCounter
from bso_client.energy.devices import Device, device_of, gpu_device
from bso_client.energy.errors import MeterFailed, NoMeter, NvmlError
from bso_client.energy.meters import (
    CpuMeters,
    GpuMeters,
    counts_processors,
    find_gpus,
    find_processors,
    method_of,
    own_gpu_indices,
    unreadable_gpu,
)
from bso_client.energy.nvml import Gpu, Nvml
from bso_client.energy.rapl import Zone
from bso_client.energy.sampling import PowerSampler
from bso_client.errors import InvalidSetting

logger = logging.getLogger("bso")

LONGEST_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMeters:
    """The meters of the chosen devices: a counter, or a place among the GPUs that ``sampler`` samples.

    ``resources`` lets go of them. ``is_counted_elsewhere``: this process trains on GPUs, all of which other ranks of
    this machine count.
    """

    gpus: Mapping[int, Gpu]
    zones: tuple[Zone, ...]
    counters: Mapping[Device, Counter]
    sampled: tuple[Device, ...]
    sampler: PowerSampler | None
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
        if found.nvml is not None:
            resources.callback(_close, found.nvml)
        gpus = _chosen_gpus(found, gpu_indices, environ)
        zones = _chosen_zones(processors, cpu_indices)
        is_counted_elsewhere = not gpus and bool(found.gpus) and gpu_indices is None
        if not gpus and not zones and not is_counted_elsewhere:
            reasons = [str(each) for each in (found.unreadable, processors.unreadable) if each is not None]
            raise NoMeter("no energy meter is readable: " + "; ".join(reasons or ["none was chosen"]))
        counted = zones if counts_processors(environ) else ()
        methods = {index: _method_of(gpu) for index, gpu in gpus.items()}
        sampled = tuple(index for index, method in methods.items() if method is EnergyMethod.NVML_POWER)
        counting = {index: gpu for index, gpu in gpus.items() if index not in sampled}
        return OpenMeters(
            gpus=gpus,
            zones=zones,
            counters=_gpu_counters(counting, clock) | _zone_counters(counted, clock, resources),
            sampled=tuple(map(gpu_device, sampled)),
            sampler=_started_sampler([gpus[index].uuid for index in sampled], resources) if sampled else None,
            method=_method(methods, has_gpus=bool(gpus) or is_counted_elsewhere),
            is_counted_elsewhere=is_counted_elsewhere,
            resources=resources.pop_all(),
        )


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


def _method_of(gpu: Gpu) -> EnergyMethod:
    try:
        return method_of(gpu)
    except MeterFailed as error:
        raise NoMeter(f"the energy of this training cannot be measured: {unreadable_gpu(gpu, error)}") from error


def _method(methods: Mapping[int, EnergyMethod], *, has_gpus: bool) -> EnergyMethod:
    if not has_gpus:
        return EnergyMethod.RAPL
    is_sampled = EnergyMethod.NVML_POWER in methods.values()
    return EnergyMethod.NVML_POWER if is_sampled else EnergyMethod.NVML_COUNTER


def _gpu_counters(gpus: Mapping[int, Gpu], clock: Callable[[], float]) -> dict[Device, Counter]:
    return {gpu_device(index): SteadyCounter(gpu.energy_j, clock=clock) for index, gpu in gpus.items()}


def _started_sampler(uuids: Sequence[str], resources: contextlib.ExitStack) -> PowerSampler:
    try:
        sampler = PowerSampler(uuids)
    except MeterFailed as error:
        raise NoMeter(f"the energy of this training cannot be measured: {error}") from error
    resources.callback(sampler.close)
    return sampler


def _zone_counters(
    zones: Sequence[Zone], clock: Callable[[], float], resources: contextlib.ExitStack
) -> dict[Device, Counter]:
    counters = {device_of(zone): zone.counter(clock) for zone in zones}
    if counters:
        is_over = threading.Event()
        resources.callback(is_over.set)
        arguments = (tuple(counters.values()), is_over)
        threading.Thread(target=keep_reading, args=arguments, name="bso RAPL", daemon=True).start()
    return dict(counters)


def keep_reading(counters: Sequence[WrappingCounter], is_over: threading.Event) -> None:
    """Read counters often enough that none wraps twice unseen, until it is over."""
    interval_s = min(LONGEST_INTERVAL_S, *(counter.read_within_s / 4 for counter in counters))
    while not is_over.wait(interval_s):
        for counter in counters:
            with contextlib.suppress(MeterFailed):  # whoever ends a window will see it
                counter.read()


def _close(nvml: Nvml) -> None:
    with contextlib.suppress(NvmlError):
        nvml.close()
