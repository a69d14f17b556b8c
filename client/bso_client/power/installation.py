"""What it takes to tune the power limit here: GPUs, the right to set their limits, a guard, and a meter."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bso_client.energy import EnergyMonitor, NoMeter
from bso_client.energy.errors import NvmlError
from bso_client.energy.monitor import Monitor
from bso_client.power.devices import Device, NoDevices, common_limits_w, find_devices
from bso_client.power.guarded_limit import GuardedLimit, LimitNotSet, is_held_here

logger = logging.getLogger("bso")

PERMISSION = (
    "setting the power limit of a GPU needs root or the right CAP_SYS_ADMIN (sudo; in a container "
    "`--cap-add SYS_ADMIN`): ask the administrator of this machine for it, or let the limit be as it is. "
    "Training and measuring go on as without a PowerLimitOptimizer"
)

EARLIER = (
    "another PowerLimitOptimizer of this process sets the power limit of the same GPU already: close the earlier "
    "PowerLimitOptimizer first, or make one for all trials, `with PowerLimitOptimizer(bso) as power_limit:` around "
    "their loop"
)

_said: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The GPUs of this process, their limit and their meter. Limits in watts of each GPU, max_power_w of all."""

    devices: tuple[Device, ...]
    limit: GuardedLimit
    monitor: Monitor
    is_own_monitor: bool
    highest_w: float
    lowest_w: float

    @property
    def max_power_w(self) -> float:
        """The largest power [W] that all of them may draw together."""
        return sum(device.highest_w for device in self.devices)

    def describe(self) -> str:
        """What they are, in a few words that are the same for the same hardware."""
        kinds = sorted({f"{device.name} ({device.memory_mib} MiB)" for device in self.devices})
        return f"{len(self.devices)} x {' and '.join(kinds)}"

    def close(self) -> None:
        """Restore the limits and let go of the meter."""
        try:
            self.limit.close()
        except LimitNotSet as error:
            extra = {"action": "power_limit_not_restored"}
            logger.warning("the power limits of %s may not be restored: %s", self.describe(), error, extra=extra)
        if self.is_own_monitor and isinstance(self.monitor, EnergyMonitor):
            self.monitor.close()


def installed(
    *,
    environ: Mapping[str, str],
    gpu_indices: Sequence[int] | None,
    monitor: Monitor | None,
    lock_folder: Path,
) -> Installation | str:
    """All of it, or why not: told once per process."""
    indices = gpu_indices if gpu_indices is not None else getattr(monitor, "gpu_indices", None)
    try:
        devices = find_devices(environ, indices)
    except NoDevices as error:
        return _say(logging.WARNING, "no_gpu", f"power limits are left alone: {error}")
    try:
        limit = GuardedLimit([device.uuid for device in devices], lock_folder=lock_folder)
    except LimitNotSet as error:
        problem = EARLIER if is_held_here(device.uuid for device in devices) else error
        said = PERMISSION if error.needs_permission else f"no power limit is tuned: {problem}"
        return _say(logging.WARNING, "power_limit_unavailable", said)
    try:
        chosen = monitor or EnergyMonitor([device.index for device in devices])
    except (NoMeter, NvmlError) as error:
        limit.close()
        return _say(logging.WARNING, "power_limit_unavailable", f"no power limit is tuned: {error}")
    highest_w, lowest_w = common_limits_w(devices, limit.found_w)
    return Installation(
        devices=devices,
        limit=limit,
        monitor=chosen,
        is_own_monitor=monitor is None,
        highest_w=highest_w,
        lowest_w=lowest_w,
    )


def _say(level: int, action: str, words: str) -> str:
    if words not in _said:
        _said.add(words)
        logger.log(level, "%s", words, extra={"action": action})
    return words
