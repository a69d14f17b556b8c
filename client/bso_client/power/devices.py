"""The GPUs whose power limit is set together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bso.domain.errors import Misconfigured
from bso_client.energy.errors import NvmlError
from bso_client.energy.meters import own_gpu_indices
from bso_client.energy.nvml import Gpu, Nvml


class NoDevices(Misconfigured):
    """There is no GPU here whose power limit could be set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU: the power limits [W] that it allows, and the one that it starts with. ``index`` as the process sees it."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    lowest_w: float
    highest_w: float
    default_w: float

    def ceiling_w(self, found_w: float) -> float:
        """The highest limit [W] to set: what it allows, but a cap that somebody has set below its default stays one."""
        return found_w if found_w < self.default_w else self.highest_w


def find_devices(environ: Mapping[str, str], indices: Sequence[int] | None = None) -> tuple[Device, ...]:
    """The GPUs with these indices among those that CUDA_VISIBLE_DEVICES shows; None: the own ones of this process.

    Raises NoDevices.
    """
    try:
        with Nvml() as nvml:
            visible = nvml.visible_gpus(environ.get("CUDA_VISIBLE_DEVICES"))
            chosen = own_gpu_indices(environ, len(visible)) if indices is None else list(indices)
            if not visible:
                raise NoDevices("there is no GPU that this process sees")
            if not chosen or any(not 0 <= index < len(visible) for index in chosen):
                raise NoDevices(f"expected GPUs {chosen or 'of its own'}, of the {len(visible)} that this process sees")
            return tuple(_device(visible[index], index) for index in chosen)
    except NvmlError as error:
        raise NoDevices(str(error)) from error


def common_limits_w(devices: Sequence[Device], found_w: Mapping[str, float]) -> tuple[float, float]:
    """The highest and the lowest limit [W] that all GPUs take; ``found_w``: what each had, by UUID."""
    highest_w = min(device.ceiling_w(found_w.get(device.uuid, device.default_w)) for device in devices)
    return highest_w, max(device.lowest_w for device in devices)


def _device(gpu: Gpu, index: int) -> Device:
    lowest_w, highest_w = gpu.power_limits_w
    return Device(
        index=index,
        uuid=gpu.uuid,
        name=gpu.name,
        memory_mib=gpu.memory_mib,
        lowest_w=lowest_w,
        highest_w=highest_w,
        default_w=gpu.default_power_limit_w,
    )
