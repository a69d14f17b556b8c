"""What ``bso doctor`` says of meters: which are readable, and why the others are not. Nothing of it is broken."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from bso_cli.findings import Finding, note, ok
from bso_cli.settings import Places

if TYPE_CHECKING:
    from bso_client.energy.meters import Survey


async def check_energy(_places: Places) -> list[Finding]:
    """Each meter that a training started here could read, and each that it could not."""
    from bso_client.energy.meters import survey

    found = await asyncio.to_thread(survey, os.environ)
    findings = [_gpu(found), *_processors(found)]
    findings += [note("energy", f"not measured: {each.device}: {each.why}", each.advice) for each in found.unreadable]
    return [finding for finding in findings if finding is not None] + _consequence(found)


def _gpu(found: Survey) -> Finding | None:
    if not found.gpus:
        return None
    named = [f"{gpu.index}: {gpu.name} (energy counter)" for gpu in found.gpus]
    return ok("energy", f"GPUs are measured: {', '.join(named)}")


def _processors(found: Survey) -> list[Finding]:
    if not found.zones:
        return []
    named = ", ".join(f"{zone.name} of package {zone.package}" if zone.is_memory else zone.name for zone in found.zones)
    return [ok("energy", f"processors and memory are measured (RAPL): {named}")]


def _consequence(found: Survey) -> list[Finding]:
    from bso_client.energy.meters import EnergySetting, read_metering_settings

    is_assumed = read_metering_settings(os.environ).energy is EnergySetting.ASSUMED
    is_in_the_dark = not found.is_any_readable or any(each.is_in_use for each in found.unreadable)
    if not is_assumed and not is_in_the_dark:
        return []
    why = "BSO_ENERGY says so" if is_assumed else "trainings here are not measured by default"
    advice = "pass the optimizer monitor= or constant_power= (in watts); BSO_ENERGY=assumed silences trainings about it"
    advice = "unset BSO_ENERGY to have it measured" if is_assumed else advice
    return [note("energy", f"energy is assumed, constant power times time: {why}", advice)]
