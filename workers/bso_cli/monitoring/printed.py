"""Readings of meters, for people and for programs."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from rich.text import Text

from bso.domain.quantities import joules, seconds, watts
from bso_cli.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bso_cli.monitoring.gauge import Readings
    from bso_client.energy.monitor import Unreadable


def shown(readings: Readings, title: str) -> Table:
    """A table of all devices, and what is missing in it."""
    columns = ("device", "name", "power", "energy") if readings.devices else ()
    made = Table(title, *columns, right=("power", "energy"), flexible=("name",), notes=_notes(readings))
    for each in readings.devices:
        made.add_row(each.device, each.name, watts(each.power_w), joules(each.energy_j))
    if len(readings.devices) > 1:
        counted = "GPUs" if any(each.device.startswith("GPU") for each in readings.devices) else "processors, memory"
        total_w, total_j = watts(readings.total_power_w), joules(readings.total_energy_j)
        made.add_row(*(Text(cell, style="bold") for cell in ("total", counted, total_w, total_j)))
    return made


def summary(readings: Readings) -> Table:
    """What a command has taken."""
    total = "unknown" if readings.total_energy_j is None else joules(readings.total_energy_j)
    return shown(readings, f"time {seconds(readings.time_s)}, energy {total}")


def _notes(readings: Readings) -> list[Text]:
    return [Text(f"not measured: {each}", style="dim") for each in readings.unreadable]


def explained(unreadable: Sequence[Unreadable]) -> str:
    """Why nothing can be shown."""
    return "no energy meter is readable here. Looked for: " + "; ".join(str(each) for each in unreadable)


def as_json(readings: Readings, *, at: datetime, **more: object) -> dict[str, object]:
    """One line for programs. What is unknown is null."""
    return {
        "at": at.isoformat(),
        "time_s": readings.time_s,
        "devices": readings.devices,
        "total_power_w": readings.total_power_w,
        "total_energy_j": readings.total_energy_j,
        "unreadable": readings.unreadable,
        **more,
    }
