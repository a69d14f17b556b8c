"""The GPUs of this process: which they are, and why their energy cannot be read."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bso.domain.errors import Misconfigured
from bso_client.energy.monitor import MeterFailed, Unreadable
from bso_client.energy.nvml import Gpu, MigSlice, NoNvml, NotSupported, Nvml, NvmlError

NVIDIA_DEVICE = Path("/dev/nvidiactl")
"""There where a driver for NVIDIA GPUs is loaded, also in containers."""

_NO_DRIVER = (9, 12)
"""NVML's errors where its driver is not loaded, or its library not found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMeters:
    """The GPUs of this process, in its own order, and why there are none; to be closed.

    ``are_numbers_certain``: whether CUDA counts them as NVML does. It counts the fastest first unless it is asked
    otherwise, which differs where the GPUs do.
    """

    nvml: Nvml | None
    gpus: tuple[Gpu, ...]
    unreadable: Unreadable | None = None
    are_numbers_certain: bool = True

    def close(self) -> None:
        """Let go of the GPUs."""
        if self.nvml is not None:
            self.nvml.close()


def find_gpus(environ: Mapping[str, str], *, nvidia_device: Path = NVIDIA_DEVICE) -> GpuMeters:
    """The GPUs that this process sees. Raises nothing: what goes wrong is the answer."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    try:
        nvml = Nvml()
    except NvmlError as error:
        return _no_gpus(_without_nvml(error, visible=visible, is_there=nvidia_device.exists()))
    try:
        gpus = nvml.visible_gpus(visible)
    except NvmlError as error:
        nvml.close()
        return _no_gpus(_unanswering(error))
    if gpus:
        return GpuMeters(nvml=nvml, gpus=gpus, are_numbers_certain=_are_numbers_certain(nvml, environ))
    nvml.close()
    why = "none is there" if visible is None else f"CUDA_VISIBLE_DEVICES={visible} leaves none visible"
    return _no_gpus(Unreadable(device="GPU", why=why))


def own_gpu_indices(environ: Mapping[str, str], count: int) -> list[int]:
    """Which of ``count`` visible GPUs this process trains on: all, or its own one among the ranks of this machine.

    Ranks that share fewer GPUs than they are count each GPU once; the others count none.
    """
    rank, ranks = _whole(environ.get("LOCAL_RANK")), _whole(environ.get("LOCAL_WORLD_SIZE"))
    sees_its_own = count == 1 and environ.get("CUDA_VISIBLE_DEVICES") is not None
    if rank is None or ranks is None or ranks <= 1 or sees_its_own:
        return list(range(count))
    return [rank] if rank < count else []


def counts_processors(environ: Mapping[str, str]) -> bool:
    """Whether the processors' energy is this process' to count: each machine's first rank does."""
    return (_whole(environ.get("LOCAL_RANK")) or 0) == 0


def unreadable_gpu(gpu: Gpu, error: MeterFailed) -> Unreadable:
    """A GPU whose energy counter cannot be read."""
    return Unreadable(device="GPU", why=str(error), advice=_advice(error), is_in_use=True, model=gpu.name)


class NoSuchGpu(Misconfigured):
    """This process sees no GPU, or not all of those that were named."""


def choose_gpus(nvml: Nvml, environ: Mapping[str, str], indices: Sequence[int] | None) -> dict[int, Gpu]:
    """The GPUs with these indices among those that CUDA_VISIBLE_DEVICES shows; None: the own ones of this process.

    Raises NoSuchGpu.
    """
    try:
        visible = nvml.visible_gpus(environ.get("CUDA_VISIBLE_DEVICES"))
    except NvmlError as error:
        raise NoSuchGpu(str(error)) from error
    chosen = own_gpu_indices(environ, len(visible)) if indices is None else list(indices)
    if not visible:
        raise NoSuchGpu("there is no GPU that this process sees")
    if not chosen or any(not 0 <= index < len(visible) for index in chosen):
        raise NoSuchGpu(f"expected GPUs {chosen or 'of its own'}, of the {len(visible)} that this process sees")
    return {index: visible[index] for index in chosen}


def _are_numbers_certain(nvml: Nvml, environ: Mapping[str, str]) -> bool:
    is_by_uuid = environ.get("CUDA_VISIBLE_DEVICES", "").strip().startswith("GPU-")
    if is_by_uuid or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return True
    try:
        return len({gpu.name for gpu in nvml.gpus()}) == 1
    except NvmlError:
        return False


def _unanswering(error: NvmlError) -> Unreadable:
    known: dict[str, Any] = {}
    if isinstance(error, MigSlice):
        known = {"model": error.model, "memory_mib": error.memory_mib}
    return Unreadable(device="GPU", why=str(error), advice=_advice(error), is_in_use=True, **known)


def _no_gpus(unreadable: Unreadable) -> GpuMeters:
    return GpuMeters(nvml=None, gpus=(), unreadable=unreadable)


def _without_nvml(error: NvmlError, *, visible: str | None, is_there: bool) -> Unreadable:
    if getattr(getattr(sys.modules.get("torch"), "version", None), "hip", None):
        why = "bso reads NVIDIA's meters only, and this PyTorch is for AMD's GPUs"
        return Unreadable(device="GPU", why=why, advice="pass a monitor of your own, as ZeusMonitor", is_in_use=True)
    is_hidden = visible is not None and visible.strip() in ("", "-1", "NoDevFiles")
    is_missing = error.code in _NO_DRIVER and not is_there
    return Unreadable(
        device="GPU",
        why=f"there is no NVIDIA driver ({error})" if is_missing else str(error),
        advice=_advice(error) if is_there else "",
        is_in_use=(is_there or not isinstance(error, NoNvml)) and not is_hidden,
    )


def _advice(error: MeterFailed) -> str:
    if isinstance(error, MigSlice):
        return "train on a whole GPU, or pass a monitor of your own"
    if isinstance(error, NotSupported):
        return "NVIDIA's GPUs count their energy from Volta (2017) on: pass a monitor of your own, as ZeusMonitor"
    if isinstance(error, NoNvml):
        return "install nvidia-ml-py; in a container, NVIDIA_DRIVER_CAPABILITIES must hold utility"
    return ""


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None
