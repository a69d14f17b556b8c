"""Which meters this process can read, and why not the others."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bso.domain.hardware import EnergyMethod
from bso_client.energy.errors import MeterFailed, MigSlice, NoNvml, NoPermission, NotSupported, NvmlError
from bso_client.energy.nvml import Gpu, Nvml
from bso_client.energy.rapl import POWERCAP, Zone, find_zones

NVIDIA_DEVICE = Path("/dev/nvidiactl")
"""There where a driver for NVIDIA GPUs is loaded, also in containers."""

DEVICE_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "BSO_POWERCAP_DIR",
)
"""What the environment says of this process' devices."""


_NO_DRIVER = (9, 12)
"""NVML's errors where its driver is not loaded, or its library not found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A meter that was looked for: why it cannot be read, and what to do about it.

    ``is_in_use``: the training runs on this device all the same, so no other meter may stand in for it. Then
    ``model`` and ``memory_mib`` [MiB] are what is known of it.
    """

    device: str
    why: str
    advice: str = ""
    is_in_use: bool = False
    model: str = ""
    memory_mib: int | None = None

    def __str__(self) -> str:
        return f"{self.device}: {self.why}{f' ({self.advice})' if self.advice else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMeters:
    """The GPUs of this process, in its own order, and why there are none. Close ``nvml`` when done with them.

    ``are_numbers_certain``: whether CUDA counts them as NVML does. It counts the fastest first unless it is told
    otherwise, which differs where the GPUs do.
    """

    nvml: Nvml | None
    gpus: tuple[Gpu, ...]
    unreadable: Unreadable | None = None
    are_numbers_certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuMeters:
    """The readable zones of processors and memory, and why there are none."""

    zones: tuple[Zone, ...]
    unreadable: Unreadable | None = None


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
        why=f"no driver of NVIDIA's is here ({error})" if is_missing else str(error),
        advice=_advice(error) if is_there else "",
        is_in_use=(is_there or not isinstance(error, NoNvml)) and not is_hidden,
    )


def method_of(gpu: Gpu) -> EnergyMethod:
    """How the energy of a GPU can be measured. Raises MeterFailed where it cannot."""
    try:
        gpu.energy_j()
    except (NotSupported, NoPermission):
        gpu.power_w()
        return EnergyMethod.NVML_POWER
    return EnergyMethod.NVML_COUNTER


def unreadable_gpu(gpu: Gpu, error: MeterFailed) -> Unreadable:
    """A GPU that tells neither energy nor power."""
    return Unreadable(device="GPU", why=str(error), advice=_advice(error), is_in_use=True, model=gpu.name)


def _advice(error: MeterFailed) -> str:
    if isinstance(error, MigSlice):
        return "train on a whole GPU, or pass a monitor of your own"
    if isinstance(error, NoNvml):
        return "install nvidia-ml-py; in a container, NVIDIA_DRIVER_CAPABILITIES must hold utility"
    return ""


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


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None
