"""Prices and emissions of electricity, as options and the environment name them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bso.domain.errors import Misconfigured
from bso.domain.foreign_text import is_plain
from bso.domain.frozen_values import replace
from bso.domain.savings import Tariff

_NUMBERS = ("price_per_kwh", "price_per_gpu_hour", "co2_g_per_kwh")
_MOST = 1e9
_MOST_CURRENCY = 12


def read_tariff(environ: Mapping[str, str], **options: float | str | None) -> Tariff:
    """Options that are not None, then BSO_PRICE_PER_KWH and the like, then the defaults. Raises Misconfigured."""
    found: dict[str, Any] = {}
    for name in (*_NUMBERS, "currency"):
        variable = f"BSO_{name.upper()}"
        given = options.get(name)
        value = environ.get(variable, "").strip() if given is None else given
        if value != "":
            found[name] = _currency(str(value), variable) if name == "currency" else _number(value, variable)
    return replace(Tariff(), **found)


def _number(value: float | str, variable: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0.0 <= number <= _MOST:
        raise Misconfigured(f"{variable} must be a number from 0 to {_MOST:g}, got {value!r}")
    return number


def _currency(value: str, variable: str) -> str:
    if len(value) > _MOST_CURRENCY or not is_plain(value):
        words = f"must be a currency such as EUR, of up to {_MOST_CURRENCY} characters, got {value!r}"
        raise Misconfigured(f"{variable} {words}")
    return value
