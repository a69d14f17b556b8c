"""NVIDIA GPUs by NVML: what they are, what they consume, and their power limits. The one place that calls pynvml."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from bso_client.energy.monitor import MeterFailed

_UNINITIALIZED = 1
_NOT_SUPPORTED = 3


class NvmlError(MeterFailed):
    """NVML, NVIDIA's management library, refused a call. ``code`` is its own: one of pynvml's NVML_ERROR_*."""

    def __init__(self, said: str, *, code: int) -> None:
        self.code = code
        super().__init__(said)


class NoNvml(NvmlError):
    """There is no NVIDIA driver here, or it does not fit the library: no GPU can be asked anything."""


class NotSupported(NvmlError):
    """This GPU or its driver cannot do this."""


class NoPermission(NvmlError):
    """This needs root, or the right CAP_SYS_ADMIN."""


class MigSlice(NvmlError):
    """The GPU is partitioned (MIG), and NVML reports power and energy of the whole GPU only, not of one slice.

    ``model`` and ``memory_mib`` [MiB] are the slice's, as far as they are known.
    """

    def __init__(self, said: str, *, code: int, model: str, memory_mib: int | None) -> None:
        self.model = model
        self.memory_mib = memory_mib
        super().__init__(said, code=code)


_ERRORS: dict[int, type[NvmlError]] = {
    3: NotSupported,
    4: NoPermission,
    9: NoNvml,  # driver not loaded
    12: NoNvml,  # library not found
    13: NotSupported,  # function not found: the driver is older than the question
    18: NoNvml,  # the library and the driver in the kernel have different versions
}

MIG_EXPLANATION = (
    "it is partitioned (MIG), and NVML reports the energy of the whole GPU only: what one slice consumes cannot be "
    "distinguished from its neighbours"
)


class Gpu:
    """One GPU. Powers are in watts, energies in joules, as floats.

    Everything that asks the GPU raises NvmlError: NotSupported where the model cannot do it, NoPermission.
    ``index`` is NVML's (by PCI bus), not the one that CUDA_VISIBLE_DEVICES makes of it.
    """

    def __init__(self, handle: Any, *, index: int) -> None:
        self.index = index
        self._handle = handle
        self._name = f"GPU {index}"
        self.uuid: str = _text(self._ask("nvmlDeviceGetUUID"))
        self.name: str = _text(self._ask("nvmlDeviceGetName"))
        self._name = f"GPU {index} ({self.name})"

    def __repr__(self) -> str:
        return f"Gpu(index={self.index}, name={self.name!r}, uuid={self.uuid!r})"

    @property
    def memory_mib(self) -> int:
        """Its memory [MiB]."""
        return int(self._ask("nvmlDeviceGetMemoryInfo").total) // 2**20

    def energy_j(self) -> float:
        """The energy [J] since the driver was loaded, by the GPU's own counter (Volta and later)."""
        return float(self._ask("nvmlDeviceGetTotalEnergyConsumption")) / 1000

    @property
    def power_limit_w(self) -> float:
        """The power limit [W] that is set."""
        return float(self._ask("nvmlDeviceGetPowerManagementLimit")) / 1000

    @property
    def default_power_limit_w(self) -> float:
        """The power limit [W] that the GPU starts with."""
        return float(self._ask("nvmlDeviceGetPowerManagementDefaultLimit")) / 1000

    @property
    def power_limits_w(self) -> tuple[float, float]:
        """The smallest and the largest power limit [W] that can be set."""
        least, most = self._ask("nvmlDeviceGetPowerManagementLimitConstraints")
        return float(least) / 1000, float(most) / 1000

    def set_power_limit_w(self, limit_w: float) -> None:
        """Set the power limit [W] of the whole GPU, for all its users. Needs root or CAP_SYS_ADMIN (NoPermission)."""
        self._ask("nvmlDeviceSetPowerManagementLimit", round(limit_w * 1000))

    @property
    def is_partitioned(self) -> bool:
        """Whether it is partitioned into slices (MIG)."""
        try:
            current, _pending = self._ask("nvmlDeviceGetMigMode")
        except NotSupported:
            return False
        return bool(current)

    def _ask(self, function: str, *arguments: object) -> Any:
        return _call(self._name, function, self._handle, *arguments)


class Nvml:
    """An open connection to NVML. Close it, or use it as a context manager; several may be open at once.

    Raises NoNvml where nvidia-ml-py or a driver that answers is missing. Not for use in a forked copy of the process.
    """

    def __init__(self) -> None:
        self._is_open = False
        _call("NVML", "nvmlInit")
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of NVML; its GPUs must not be asked any more."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(NvmlError):
                _call("NVML", "nvmlShutdown")

    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs of this machine, in the order of their PCI bus."""
        return tuple(_gpu(index) for index in range(_count()))

    def visible_gpus(self, visible_devices: str | None) -> tuple[Gpu, ...]:
        """The GPUs that CUDA_VISIBLE_DEVICES lets a process see (None: all), in the process' own order.

        A GPU that does not answer harms nobody who does not see it. Raises MigSlice where one is a slice of a GPU.
        """
        if visible_devices is not None and names_mig_slice(visible_devices):
            raise _named_slice(visible_devices)
        uuids = [_uuid(index) for index in range(_count())]
        chosen = tuple(_gpu(index) for index in visible_positions(visible_devices, uuids))
        for gpu in chosen:
            if gpu.is_partitioned:
                said = f"GPU {gpu.index} ({gpu.name}): {MIG_EXPLANATION}"
                raise MigSlice(said, code=_NOT_SUPPORTED, model=f"{gpu.name} MIG", memory_mib=None)
        return chosen


def _named_slice(visible_devices: str) -> MigSlice:
    """Why a slice, named by its UUID, cannot be measured; NVML knows its name and memory at least."""
    said = f"CUDA_VISIBLE_DEVICES={visible_devices} names a slice of a GPU: {MIG_EXPLANATION}"
    uuid = visible_devices.split(",", maxsplit=1)[0].strip()
    try:
        handle = _call(uuid, "nvmlDeviceGetHandleByUUID", uuid)
        model = _text(_call(uuid, "nvmlDeviceGetName", handle))
        memory_mib = int(_call(uuid, "nvmlDeviceGetMemoryInfo", handle).total) // 2**20
    except NvmlError:
        model, memory_mib = "slice of a GPU (MIG)", None
    return MigSlice(said, code=_NOT_SUPPORTED, model=model, memory_mib=memory_mib)


def _count() -> int:
    return int(_call("NVML", "nvmlDeviceGetCount"))


def _gpu(index: int) -> Gpu:
    return Gpu(_call(f"GPU {index}", "nvmlDeviceGetHandleByIndex", index), index=index)


def _uuid(index: int) -> str:
    try:
        return _gpu(index).uuid
    except NvmlError:
        return ""


def _call(whom: str, function: str, *arguments: object) -> Any:
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError as error:
        said = "nvidia-ml-py is not installed: pip install 'bso-optimizer[gpu]' to use NVIDIA GPUs"
        raise NoNvml(said, code=_UNINITIALIZED) from error
    try:
        return getattr(pynvml, function)(*arguments)
    except AttributeError as error:
        raise NotSupported(f"{whom}: this nvidia-ml-py has no {function}: upgrade it", code=_NOT_SUPPORTED) from error
    except pynvml.NVMLError as error:
        code = int(getattr(error, "value", 999))
        kind = _ERRORS.get(code, NvmlError)
        raise kind(f"{whom}: {function}: {error} (NVML error {code})", code=code) from error


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def names_mig_slice(visible_devices: str | None) -> bool:
    """Whether the process is to run on slices of partitioned GPUs (MIG)."""
    return visible_devices is not None and visible_devices.strip().startswith("MIG-")


def visible_positions(visible_devices: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """The positions among ``uuids`` of the GPUs that the process sees, in its own order.

    None: all of them. As CUDA has it, the list ends at the first entry that names no GPU (an index too large or
    negative, an unknown or ambiguous beginning of a UUID), and one that names a GPU twice names none at all.
    """
    if visible_devices is None:
        return tuple(range(len(uuids)))
    read = _by_uuid if visible_devices.strip().startswith("GPU-") else _by_index
    chosen: list[int] = []
    for entry in visible_devices.split(","):
        position = read(entry.strip(), uuids)
        if position is None:
            break
        if position in chosen:
            return ()
        chosen.append(position)
    return tuple(chosen)


def _by_index(entry: str, uuids: Sequence[str]) -> int | None:
    digits = re.match(r"\+?(\d+)", entry)  # CUDA reads "1st" as 1
    index = int(digits[1]) if digits else len(uuids)
    return index if index < len(uuids) else None


def _by_uuid(entry: str, uuids: Sequence[str]) -> int | None:
    if not entry.startswith("GPU-"):
        return None
    fitting = [position for position, uuid in enumerate(uuids) if uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None
