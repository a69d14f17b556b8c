"""All meters of a machine at a glance, for people: what each would measure, and why the others cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bso.domain.hardware import EnergyMethod
from bso_client.energy.errors import MeterFailed
from bso_client.energy.meters import GpuMeters, Unreadable, find_gpus, find_processors, method_of, unreadable_gpu
from bso_client.energy.rapl import Zone


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableGpu:
    """A GPU whose energy can be measured. ``index`` is as a training counts, after CUDA_VISIBLE_DEVICES."""

    index: int
    name: str
    method: EnergyMethod


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
    found, processors = find_gpus(environ), find_processors(environ)
    try:
        readable, unreadable = _sorted_out(found)
    finally:
        if found.nvml is not None:
            found.nvml.close()
    rest = [each for each in (found.unreadable, processors.unreadable) if each is not None]
    return Survey(gpus=tuple(readable), zones=processors.zones, unreadable=(*unreadable, *rest))


def _sorted_out(found: GpuMeters) -> tuple[list[ReadableGpu], list[Unreadable]]:
    readable, unreadable = [], []
    for index, gpu in enumerate(found.gpus):
        try:
            readable.append(ReadableGpu(index=index, name=gpu.name, method=method_of(gpu)))
        except MeterFailed as error:
            unreadable.append(unreadable_gpu(gpu, error))
    return readable, unreadable
