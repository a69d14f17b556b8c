"""What has a meter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bso_client.energy.rapl import Zone


class DeviceKind(Enum):
    """The kinds of devices; the comment says what their index counts."""

    GPU = "GPU"  # the GPUs that this process sees
    CPU = "CPU"  # processor packages
    DRAM = "DRAM"  # the packages whose memory it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device with a meter."""

    kind: DeviceKind
    index: int

    def __str__(self) -> str:
        return f"{self.kind.value} {self.index}"


def gpu_device(index: int) -> Device:
    """The GPU that the training knows by this index."""
    return Device(kind=DeviceKind.GPU, index=index)


def device_of(zone: Zone) -> Device:
    """The device that a zone of RAPL measures."""
    return Device(kind=DeviceKind.DRAM if zone.is_memory else DeviceKind.CPU, index=zone.package)
