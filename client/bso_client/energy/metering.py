"""Chooses how the energy of a process' trainings is obtained. Measured where a meter is readable, assumed otherwise."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from bso.domain.quantities import watts
from bso_client.energy.assumed import DEFAULT_POWER_W, ConstantPowerMonitor
from bso_client.energy.energy_monitor import EnergyMonitor
from bso_client.energy.errors import NoMeter
from bso_client.energy.meters import DEVICE_VARIABLES
from bso_client.energy.monitor import Monitor
from bso_client.errors import InvalidSetting

logger = logging.getLogger("bso")

NOTICE_GIVEN, ENERGY_ASSUMED = "BSO_NOTICE_GIVEN", "energy_assumed"
"""The variable in which `bso recur` names a notice that the launches after the first need not repeat."""

_told: set[str] = set()


class EnergySetting(Enum):
    """What BSO_ENERGY may say."""

    AUTO = "auto"  # measured where a meter is readable, assumed otherwise
    ASSUMED = "assumed"  # constant power times time, whatever is readable


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteringSettings:
    """What the environment says of energy: BSO_ENERGY, and what concerns devices.

    ``is_notice_given``: `bso recur` has seen that energy is assumed here, so an earlier launch has warned of it.
    """

    energy: EnergySetting
    devices: Mapping[str, str]
    is_notice_given: bool = False


def read_metering_settings(environ: Mapping[str, str]) -> MeteringSettings:
    """Read the environment. Raises InvalidSetting."""
    word = environ.get("BSO_ENERGY") or EnergySetting.AUTO.value
    known = [each.value for each in EnergySetting]
    if word not in known:
        raise InvalidSetting(f"BSO_ENERGY must be one of {', '.join(known)}, got {word!r}")
    devices = {name: environ[name] for name in DEVICE_VARIABLES if name in environ}
    is_notice_given = environ.get(NOTICE_GIVEN) == ENERGY_ASSUMED
    return MeteringSettings(energy=EnergySetting(word), devices=devices, is_notice_given=is_notice_given)


def default_monitor(settings: MeteringSettings, *, constant_power_w: float | None) -> EnergyMonitor | None:
    """A monitor of this process' devices; None where energy is assumed, which is warned about once."""
    if settings.energy is EnergySetting.ASSUMED:
        logger.info("energy is assumed, as BSO_ENERGY says", extra={"action": ENERGY_ASSUMED})
        return None
    try:
        return EnergyMonitor(environ=settings.devices)
    except NoMeter as error:
        logger.info("%s", error, extra={"action": "no_meter"})
        if not settings.is_notice_given:
            _warn_once(_assumption(constant_power_w))
        return None


def assumed_monitor(constant_power_w: float | None) -> Monitor:
    """What stands in for a meter."""
    return ConstantPowerMonitor(constant_power_w or DEFAULT_POWER_W)


def _assumption(constant_power_w: float | None) -> str:
    return (
        f"energy is assumed to be {watts(constant_power_w or DEFAULT_POWER_W)} times time: "
        "`bso doctor` says why, and what to do"
    )


def _warn_once(words: str) -> None:
    if words not in _told:
        _told.add(words)
        logger.warning("%s", words, extra={"action": ENERGY_ASSUMED})
