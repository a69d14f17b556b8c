"""What a process measures its trainings with, and what it trains on."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from bso.domain.hardware import HardwareKind
from bso_client.energy import EnergyMonitor
from bso_client.energy.energy_monitor import assumed_monitor, default_monitor
from bso_client.energy.meters import MeteringSettings
from bso_client.energy.monitor import Monitor
from bso_client.hardware import hardware_for
from bso_client.options import OptimizerOptions

logger = logging.getLogger("bso")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruments:
    """The meter and the hardware kind of this process; ``assumed`` stands in where energy must not be measured."""

    monitor: Monitor
    assumed: Monitor
    hardware: HardwareKind
    is_hardware_given: bool
    own_monitor: EnergyMonitor | None

    def close(self) -> None:
        """Let go of the meters that were opened here; the user's own stay open."""
        if self.own_monitor is not None:
            self.own_monitor.close()


def instruments_for(options: OptimizerOptions, metering: MeteringSettings, *, speaks: bool) -> Instruments:
    """The user's monitor, else one of the meters that are readable, else an assumption, which is warned about.

    Only the process that ``speaks`` warns. Raises InvalidSetting.
    """
    power_w, given = options.get("constant_power"), options.get("monitor")
    with contextlib.nullcontext() if speaks else _silence():
        own = default_monitor(metering, constant_power_w=power_w) if given is None else None
        measuring = own if given is None else given
        hardware = hardware_for(
            options.get("hardware"), monitor=measuring, constant_power_w=power_w, environ=metering.devices
        )
    assumed = assumed_monitor(power_w)
    return Instruments(
        monitor=assumed if measuring is None else measuring,
        assumed=assumed,
        hardware=hardware,
        is_hardware_given=options.get("hardware") is not None,
        own_monitor=own,
    )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Drop the warnings of this thread: another process logs the same."""
    thread = threading.get_ident()

    def is_heard(record: logging.LogRecord) -> bool:
        return record.thread != thread or record.levelno >= logging.ERROR

    logger.addFilter(is_heard)
    try:
        yield
    finally:
        logger.removeFilter(is_heard)
