"""NVML as a file describes it: stands in for nvidia-ml-py's pynvml, in this process and in its children.

The JSON file named by BSO_FAKE_NVML is the machine (tests.fakes.gpus writes it); without it there is no driver.
Constants, error classes, messages, units (mW, mJ) and calling conventions are those of nvidia-ml-py 13, errors those
that drivers were seen to give: no energy counter before Volta (Not Supported), no MIG mode before Ampere (Not
Supported), power limits only for root (Insufficient Permissions), one out of range (Invalid Argument).
"""

import fcntl
import json
import os
import string
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

NVML_SUCCESS = 0
NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_ALREADY_INITIALIZED = 5
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_INSUFFICIENT_SIZE = 7
NVML_ERROR_INSUFFICIENT_POWER = 8
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_TIMEOUT = 10
NVML_ERROR_IRQ_ISSUE = 11
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_CORRUPTED_INFOROM = 14
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_RESET_REQUIRED = 16
NVML_ERROR_OPERATING_SYSTEM = 17
NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
NVML_ERROR_IN_USE = 19
NVML_ERROR_MEMORY = 20
NVML_ERROR_NO_DATA = 21
NVML_ERROR_UNKNOWN = 999

NVML_FEATURE_DISABLED = 0
NVML_FEATURE_ENABLED = 1
NVML_DEVICE_MIG_DISABLE = 0
NVML_DEVICE_MIG_ENABLE = 1
NVML_DEVICE_ARCH_PASCAL = 4
NVML_DEVICE_ARCH_VOLTA = 5
NVML_DEVICE_ARCH_HOPPER = 9
NVML_FI_DEV_POWER_AVERAGE = 185
NVML_FI_DEV_POWER_INSTANT = 186
NVML_POWER_SCOPE_GPU = 0
NVML_POWER_SCOPE_MODULE = 1
NVML_POWER_SCOPE_MEMORY = 2
NVML_TEMPERATURE_GPU = 0


class NVMLError(Exception):
    _valClassMapping: ClassVar[dict[int, type["NVMLError"]]] = {}
    _errcode_to_string: ClassVar[dict[int, str]] = {
        NVML_ERROR_UNINITIALIZED: "Uninitialized",
        NVML_ERROR_INVALID_ARGUMENT: "Invalid Argument",
        NVML_ERROR_NOT_SUPPORTED: "Not Supported",
        NVML_ERROR_NO_PERMISSION: "Insufficient Permissions",
        NVML_ERROR_ALREADY_INITIALIZED: "Already Initialized",
        NVML_ERROR_NOT_FOUND: "Not Found",
        NVML_ERROR_INSUFFICIENT_SIZE: "Insufficient Size",
        NVML_ERROR_INSUFFICIENT_POWER: "Insufficient External Power",
        NVML_ERROR_DRIVER_NOT_LOADED: "Driver Not Loaded",
        NVML_ERROR_TIMEOUT: "Timeout",
        NVML_ERROR_IRQ_ISSUE: "Interrupt Request Issue",
        NVML_ERROR_LIBRARY_NOT_FOUND: "NVML Shared Library Not Found",
        NVML_ERROR_FUNCTION_NOT_FOUND: "Function Not Found",
        NVML_ERROR_CORRUPTED_INFOROM: "Corrupted infoROM",
        NVML_ERROR_GPU_IS_LOST: "GPU is lost",
        NVML_ERROR_RESET_REQUIRED: "GPU requires restart",
        NVML_ERROR_OPERATING_SYSTEM: "The operating system has blocked the request.",
        NVML_ERROR_LIB_RM_VERSION_MISMATCH: "RM has detected an NVML/RM version mismatch.",
        NVML_ERROR_MEMORY: "Insufficient Memory",
        NVML_ERROR_UNKNOWN: "Unknown Error",
    }
    value: int

    def __new__(cls, value: int = NVML_ERROR_UNKNOWN, *_: object) -> "NVMLError":  # noqa: PYI034  # of the class that the code has
        made = super().__new__(cls._valClassMapping.get(value, cls) if cls is NVMLError else cls)
        made.value = value
        return made

    def __str__(self) -> str:
        return self._errcode_to_string.get(self.value, f"NVML Error with code {self.value}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NVMLError) and self.value == other.value

    __hash__ = Exception.__hash__


def _class_of(name: str, code: int) -> type[NVMLError]:
    def new(cls: type[NVMLError], *_: object) -> NVMLError:
        return NVMLError.__new__(cls, code)

    kind = type("NVMLError_" + string.capwords(name, "_").replace("_", ""), (NVMLError,), {"__new__": new})
    kind.__module__ = __name__
    return kind


for _name, _code in [(name, code) for name, code in globals().items() if name.startswith("NVML_ERROR_")]:
    _kind = _class_of(_name.removeprefix("NVML_ERROR_"), _code)
    NVMLError._valClassMapping[_code] = _kind
    globals()[_kind.__name__] = _kind


@dataclass(frozen=True)
class _Handle:
    """What the real library has as an opaque pointer: to a GPU, or to a slice of one (MIG)."""

    index: int
    slice: int | None = None


_T = TypeVar("_T")
_times_initialised = 0


def nvmlInit() -> None:
    global _times_initialised  # noqa: PLW0603  # as in the real module
    if not _path().is_file():
        raise NVMLError(NVML_ERROR_LIBRARY_NOT_FOUND)
    with _machine() as machine:
        _check(machine, "nvmlInit")
    _times_initialised += 1


def nvmlShutdown() -> None:
    global _times_initialised  # noqa: PLW0603  # as in the real module
    _check_initialised()
    _times_initialised -= 1


def nvmlSystemGetDriverVersion() -> str:
    with _asked("nvmlSystemGetDriverVersion") as machine:
        return str(machine.get("driver_version", "570.124.06"))


def nvmlDeviceGetCount() -> int:
    with _asked("nvmlDeviceGetCount") as machine:
        return len(machine["devices"])


def nvmlDeviceGetHandleByIndex(index: int) -> _Handle:
    with _asked("nvmlDeviceGetHandleByIndex") as machine:
        if not 0 <= index < len(machine["devices"]):
            raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
        _check(machine["devices"][index], "nvmlDeviceGetHandleByIndex")
        return _Handle(index)


def nvmlDeviceGetHandleByUUID(uuid: str | bytes) -> _Handle:
    wanted = uuid.decode() if isinstance(uuid, bytes) else uuid
    with _asked("nvmlDeviceGetHandleByUUID") as machine:
        for index, device in enumerate(machine["devices"]):
            if device["uuid"] == wanted:  # the whole of it: only CUDA knows beginnings
                return _Handle(index)
            for number, part in enumerate(device["slices"]):
                if part["uuid"] == wanted:
                    return _Handle(index, number)
        raise NVMLError(NVML_ERROR_NOT_FOUND)


def nvmlDeviceGetIndex(handle: _Handle) -> int:
    return _device("nvmlDeviceGetIndex", handle, lambda _device: handle.index)


def nvmlDeviceGetUUID(handle: _Handle) -> str:
    return _device("nvmlDeviceGetUUID", handle, lambda device: str(device["uuid"]))


def nvmlDeviceGetName(handle: _Handle) -> str:
    def name(device: dict[str, Any]) -> str:
        return str(device["name"]) if handle.slice is None else f"{device['name']} {_slice(device, handle)['name']}"

    return _device("nvmlDeviceGetName", handle, name)


def nvmlDeviceGetMemoryInfo(handle: _Handle, version: int | None = None) -> SimpleNamespace:
    def memory(device: dict[str, Any]) -> SimpleNamespace:
        part = device if handle.slice is None else _slice(device, handle)
        total = int(part["memory_mib"]) * 2**20
        return SimpleNamespace(total=total, free=total, used=0)

    return _device("nvmlDeviceGetMemoryInfo", handle, memory)


def nvmlDeviceGetArchitecture(handle: _Handle) -> int:
    def architecture(device: dict[str, Any]) -> int:
        return NVML_DEVICE_ARCH_PASCAL if device["energy_j"] is None else NVML_DEVICE_ARCH_HOPPER

    return _device("nvmlDeviceGetArchitecture", handle, architecture)


def nvmlDeviceGetTotalEnergyConsumption(handle: _Handle) -> int:
    def millijoules(device: dict[str, Any]) -> int:
        if device["energy_j"] is None or handle.slice is not None:
            raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
        since = device["counting_since"]
        growth_j = 0.0 if since is None else device["power_w"] * (time.monotonic() - since)
        return int((device["energy_j"] + growth_j) * 1000 + 0.5)

    return _device("nvmlDeviceGetTotalEnergyConsumption", handle, millijoules)


def nvmlDeviceGetPowerUsage(handle: _Handle) -> int:
    def milliwatts(device: dict[str, Any]) -> int:
        if device["power_w"] is None or handle.slice is not None:
            raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
        return int(device["power_w"] * 1000 + 0.5)

    return _device("nvmlDeviceGetPowerUsage", handle, milliwatts)


def nvmlDeviceGetFieldValues(handle: _Handle, fieldIds: list[int | tuple[int, int]]) -> list[SimpleNamespace]:
    def values(device: dict[str, Any]) -> list[SimpleNamespace]:
        found = []
        for field in fieldIds:
            number = field[0] if isinstance(field, tuple) else field
            power_w = device["power_w"] if number in (NVML_FI_DEV_POWER_AVERAGE, NVML_FI_DEV_POWER_INSTANT) else None
            value = SimpleNamespace(uiVal=0 if power_w is None else round(float(power_w) * 1000))
            returned = NVML_ERROR_NOT_SUPPORTED if power_w is None else NVML_SUCCESS
            found.append(SimpleNamespace(fieldId=number, nvmlReturn=returned, value=value))
        return found

    return _device("nvmlDeviceGetFieldValues", handle, values)


def nvmlDeviceGetPowerManagementLimitConstraints(handle: _Handle) -> list[int]:
    def limits(device: dict[str, Any]) -> list[int]:
        return [_limit_mw(device, "min_limit_w"), _limit_mw(device, "max_limit_w")]

    return _device("nvmlDeviceGetPowerManagementLimitConstraints", handle, limits)


def nvmlDeviceGetPowerManagementLimit(handle: _Handle) -> int:
    return _device("nvmlDeviceGetPowerManagementLimit", handle, lambda device: _limit_mw(device, "limit_w"))


def nvmlDeviceGetEnforcedPowerLimit(handle: _Handle) -> int:
    return _device("nvmlDeviceGetEnforcedPowerLimit", handle, lambda device: _limit_mw(device, "limit_w"))


def nvmlDeviceGetPowerManagementDefaultLimit(handle: _Handle) -> int:
    return _device(
        "nvmlDeviceGetPowerManagementDefaultLimit", handle, lambda device: _limit_mw(device, "default_limit_w")
    )


def nvmlDeviceSetPowerManagementLimit(handle: _Handle, limit: int) -> None:
    with _asked("nvmlDeviceSetPowerManagementLimit") as machine:
        device = machine["devices"][handle.index]
        _check(device, "nvmlDeviceSetPowerManagementLimit")
        if not machine["is_root"]:
            raise NVMLError(NVML_ERROR_NO_PERMISSION)
        if not _limit_mw(device, "min_limit_w") <= limit <= _limit_mw(device, "max_limit_w"):
            raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
        device["limit_w"] = limit / 1000
        machine["limits_set"].append([handle.index, limit / 1000])


def nvmlDeviceGetPersistenceMode(handle: _Handle) -> int:
    return _device("nvmlDeviceGetPersistenceMode", handle, lambda _device: NVML_FEATURE_ENABLED)


def nvmlDeviceGetMigMode(handle: _Handle) -> list[int]:
    def modes(device: dict[str, Any]) -> list[int]:
        if device["mig_mode"] is None:
            raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
        return [device["mig_mode"], device["mig_mode"]]

    return _device("nvmlDeviceGetMigMode", handle, modes)


def nvmlDeviceGetC2cModeInfoV(handle: _Handle) -> Any:
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)  # only Grace Hopper has it


def _nvmlGetFunctionPointer(name: str) -> Any:
    """Zeus looks for it to distinguish nvidia-ml-py from its namesake."""
    return globals()[name]


def _slice(device: dict[str, Any], handle: _Handle) -> dict[str, Any]:
    part: dict[str, Any] = device["slices"][handle.slice]
    return part


def _limit_mw(device: dict[str, Any], name: str) -> int:
    if device[name] is None:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return int(device[name] * 1000 + 0.5)


def _device(function: str, handle: _Handle, read: Callable[[dict[str, Any]], _T]) -> _T:
    with _asked(function) as machine:
        device = machine["devices"][handle.index]
        _check(device, function)
        return read(device)


@contextmanager
def _asked(function: str) -> Iterator[dict[str, Any]]:
    _check_initialised()
    with _machine() as machine:
        _check(machine, function)
        yield machine


def _check_initialised() -> None:
    if _times_initialised <= 0:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)


def _check(thing: dict[str, Any], function: str) -> None:
    """Fail as the file says of the machine or of one device: always, or by a list of codes, one for each call."""
    code = thing["errors"].get(function, NVML_SUCCESS)
    if isinstance(code, list):
        code = code.pop(0) if code else NVML_SUCCESS
    if code != NVML_SUCCESS:
        raise NVMLError(code)


def _path() -> Path:
    return Path(os.environ.get("BSO_FAKE_NVML") or "/nonexistent")


@contextmanager
def _machine() -> Iterator[dict[str, Any]]:
    """The machine, while nobody else reads or changes it; what changes is written back, even where a call fails."""
    path = _path()
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = path.read_text(encoding="utf-8")
        machine = json.loads(text)
        try:
            yield machine
        finally:
            changed = json.dumps(machine)
            if changed != text:
                path.write_text(changed, encoding="utf-8")
