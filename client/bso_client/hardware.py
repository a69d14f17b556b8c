"""What this training runs on, as far as it can be found out."""

from __future__ import annotations

import contextlib
import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bso.domain.foreign_text import shown
from bso.domain.hardware import EnergyMethod, HardwareKind, hardware_problems
from bso_client.energy import EnergyMonitor
from bso_client.energy.gpus import find_gpus, own_gpu_indices
from bso_client.energy.monitor import DEFAULT_POWER_W, Monitor, Unreadable
from bso_client.energy.nvml import Gpu, NvmlError
from bso_client.energy.rapl import Zone
from bso_client.errors import InvalidSetting

logger = logging.getLogger("bso")

_CPU_INFO = Path("/proc/cpuinfo")
_T = TypeVar("_T")


def hardware_for(
    given: HardwareKind | None, *, monitor: Monitor | None, constant_power_w: float | None, environ: Mapping[str, str]
) -> HardwareKind:
    """The hardware kind of this process' trials: what the monitor measures, else what the process sees.

    How the energy is obtained is never a matter of what was given: assumed without a monitor, an EnergyMonitor's own
    method, MONITOR for any other object unless its owner knows better.
    """
    power_w = constant_power_w or DEFAULT_POWER_W
    if isinstance(monitor, EnergyMonitor):
        found = given or _measured_kind(monitor, constant_power_w)
        method = monitor.method
    else:
        found = given or _seen_kind(environ, getattr(monitor, "gpu_indices", None), power_w)
        is_stated = found.energy_method is not EnergyMethod.ASSUMED
        method = EnergyMethod.ASSUMED if monitor is None else found.energy_method if is_stated else EnergyMethod.MONITOR
    return _checked(replace(found, energy_method=method))


def _checked(hardware: HardwareKind) -> HardwareKind:
    problems = hardware_problems(hardware)
    if problems:
        raise InvalidSetting("; ".join(f"{name} {problem}" for name, problem in problems.items()))
    return hardware


def _measured_kind(monitor: EnergyMonitor, constant_power_w: float | None) -> HardwareKind:
    if monitor.gpus:
        return gpu_kind(monitor.gpus, constant_power_w or DEFAULT_POWER_W)
    if monitor.is_counted_elsewhere:
        return cpu_kind(constant_power_w or DEFAULT_POWER_W)
    return cpu_kind(_largest_power_w(monitor.zones) or constant_power_w or _unknown_power_w())


def _largest_power_w(zones: Sequence[Zone]) -> float | None:
    """The largest power [W] of all packages and their memory together; None where a package does not report its own."""
    if any(zone.max_power_w is None for zone in zones if not zone.is_memory):
        return None
    return sum(zone.max_power_w or 0.0 for zone in zones) or None


def _unknown_power_w() -> float:
    logger.warning(
        "the processor does not report its largest power: %g W are assumed, with which time hardly counts "
        "beside measured energy; pass constant_power= (its thermal design power in watts)",
        DEFAULT_POWER_W,
        extra={"action": "max_power_unknown"},
    )
    return DEFAULT_POWER_W


def _seen_kind(environ: Mapping[str, str], indices: object, constant_power_w: float) -> HardwareKind:
    with contextlib.closing(find_gpus(environ)) as found:
        try:
            chosen = _chosen(found.gpus, indices, environ)
            if chosen:
                return gpu_kind(chosen, constant_power_w)
        except NvmlError as error:
            logger.warning("the GPU cannot be identified: %s", error, extra={"action": "gpu_unknown"})
    if found.unreadable is not None and found.unreadable.is_in_use:
        return _unreadable_kind(found.unreadable, constant_power_w)
    return cpu_kind(constant_power_w)


def _chosen(gpus: Sequence[Gpu], indices: object, environ: Mapping[str, str]) -> Sequence[Gpu]:
    """Those that a monitor with ``gpu_indices``, as a ZeusMonitor, measures, else the process' own."""
    with contextlib.suppress(TypeError, IndexError):
        return [gpus[index] for index in indices]  # type: ignore[attr-defined]  # whatever the object has
    return [gpus[index] for index in own_gpu_indices(environ, len(gpus))]


def gpu_kind(gpus: Sequence[Gpu], constant_power_w: float) -> HardwareKind:
    """GPUs as a hardware kind: their largest powers together. Raises NvmlError."""
    return HardwareKind(
        gpu_model=shown(" + ".join(sorted({gpu.name for gpu in gpus}))),
        memory_mib=_if_readable(lambda: min(gpu.memory_mib for gpu in gpus)),
        number_of_gpus=len(gpus),
        max_power_w=_if_readable(lambda: sum(gpu.power_limits_w[1] for gpu in gpus)) or constant_power_w,
        energy_method=EnergyMethod.ASSUMED,
    )


def _if_readable(ask: Callable[[], _T]) -> _T | None:
    try:
        return ask()
    except NvmlError as error:
        logger.warning("%s", error, extra={"action": "gpu_unknown"})
        return None


def _unreadable_kind(gpu: Unreadable, constant_power_w: float) -> HardwareKind:
    return HardwareKind(
        gpu_model=shown(gpu.model or "unknown GPU"),
        memory_mib=gpu.memory_mib,
        max_power_w=constant_power_w,
        energy_method=EnergyMethod.ASSUMED,
    )


def cpu_kind(constant_power_w: float, *, cpu_info: Path = _CPU_INFO) -> HardwareKind:
    """The processor as a hardware kind, with the largest power [W] that is known or assumed."""
    return HardwareKind(
        gpu_model=_cpu_model(cpu_info)[:200], max_power_w=constant_power_w, energy_method=EnergyMethod.ASSUMED
    )


def _cpu_model(cpu_info: Path) -> str:
    try:
        for line in cpu_info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "cpu model") and value.strip():
                return shown(" ".join(value.split()))
    except OSError:
        logger.debug("no %s", cpu_info, extra={"action": "cpu_unknown"})
    return platform.processor() or platform.machine() or "unknown CPU"
