"""What a window of an EnergyMonitor measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from bso.domain.hardware import EnergyMethod
from bso_client.energy.monitor import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Time [s] and energy [J] between begin_window and end_window; NaN where a meter failed meanwhile.

    ``gpu_energy`` by the index of the GPU as the training sees it (after CUDA_VISIBLE_DEVICES); ``cpu_energy`` by
    processor package; ``dram_energy`` by the package whose memory it is, None where the processor does not tell it.
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


def total_energy_j(measured: Measured) -> float:
    """The total energy [J] of whatever monitor. NaN where it knows GPUs, measured none, and nothing else either.

    A ZeusMonitor on a machine without a GPU sums up no GPUs to 0 J, and holds processors and memory beside them. An
    EnergyMonitor that measures no device has nothing to count: other ranks count its GPUs.
    """
    if isinstance(measured, Measurement) or getattr(measured, "gpu_energy", None) != {}:
        return float(measured.total_energy)
    processors, memory = getattr(measured, "cpu_energy", None), getattr(measured, "dram_energy", None)
    if processors is None:
        return math.nan
    return float(sum(processors.values()) + sum((memory or {}).values()))
