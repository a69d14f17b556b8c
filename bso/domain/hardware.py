"""The hardware kind of a trial: what makes costs comparable."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from bso.domain.foreign_text import is_plain, shown
from bso.domain.quantities import watts

MAX_MODEL_LENGTH = 1000
MAX_POWER_W = 1e12


class EnergyMethod(Enum):
    """How the energy of a trial was obtained."""

    NVML_COUNTER = "nvml_counter"  # the GPU's own energy counter
    RAPL = "rapl"  # the CPU's running average power limit counters
    MONITOR = "monitor"  # a monitor object that the user passed in
    ASSUMED = "assumed"  # no meter: constant power times time


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareKind:
    """What a trial ran on. Costs, bounds and infeasibility of different kinds are never compared.

    ``max_power_w`` is the largest power [W] that all devices may draw together: MaxPower of the Zeus paper's cost
    (NSDI '23, eq. 2), summed over the devices. ``memory_mib`` is one device's memory [MiB].
    """

    gpu_model: str
    max_power_w: float
    energy_method: EnergyMethod
    number_of_gpus: int = 1
    memory_mib: int | None = None

    @property
    @lru_cache(maxsize=1024)  # noqa: B019  # equal kinds share one result, and what is kept is small
    def key(self) -> str:
        """A short name that is equal exactly for equal kinds: 16 hexadecimal digits."""
        parts = (
            self.gpu_model,
            self.memory_mib,
            self.number_of_gpus,
            float(self.max_power_w),
            self.energy_method.value,
        )
        return hashlib.blake2b(ascii(parts).encode(), digest_size=8).hexdigest()

    def describe(self) -> str:
        """The kind in a few words, for people."""
        return (
            f"{self.number_of_gpus} x {self.gpu_model} ({watts(self.max_power_w)}, energy {self.energy_method.value})"
        )


def hardware_problems(hardware: HardwareKind) -> dict[str, str]:
    """What is wrong with a hardware kind, by field; empty if nothing is."""
    problems: dict[str, str] = {}
    if not hardware.gpu_model or len(hardware.gpu_model) > MAX_MODEL_LENGTH:
        problems["hardware.gpu_model"] = f"must have 1 to {MAX_MODEL_LENGTH} characters, got {len(hardware.gpu_model)}"
    elif not is_plain(hardware.gpu_model):
        problems["hardware.gpu_model"] = f"must not hold hidden characters, got '{shown(hardware.gpu_model[:60])}'"
    if not 0 < hardware.max_power_w <= MAX_POWER_W:
        problems["hardware.max_power_w"] = (
            f"must be a positive number of watts, at most {MAX_POWER_W:g}, got {hardware.max_power_w}"
        )
    if not 1 <= hardware.number_of_gpus <= 1_000_000:
        problems["hardware.number_of_gpus"] = f"must be from 1 to 1000000, got {hardware.number_of_gpus}"
    if hardware.memory_mib is not None and not 0 < hardware.memory_mib < 2**40:
        problems["hardware.memory_mib"] = f"must be a positive number of MiB, got {hardware.memory_mib}"
    return problems
