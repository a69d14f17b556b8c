"""Quantities as people read them: three significant digits, and a unit that suits; moments, counts and lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

NOTHING = "–"
"""What stands for a quantity that is not known, or not finite."""

_PREFIXES = {-12: "p", -9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T"}
_DIGITS, _MOST_DIGITS = 3, 6
_LEAST_SHARE = 5e-5  # less is a rounding error, or as good as nothing
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_LEAST, _MOST = 1e-12, 1e15  # what lies beyond has no place but in a power of ten


def joules(value: float | None) -> str:
    """An energy or a cost [J]: ``0.81 µJ``, ``12.3 J``, ``45.6 MJ``."""
    return _with_prefix(value, "J")


def watts(value: float | None) -> str:
    """A power [W]."""
    return _with_prefix(value, "W")


def seconds(value: float | None) -> str:
    """A duration [s]: ``34.3 µs``, ``45.6 s``, ``1 min 05 s``, ``2 h 05 min``, ``3 d 04 h``."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if not _MINUTE <= _rounded(value, _DIGITS) < _MOST:
        return _with_prefix(value, "s", largest=0)
    whole = round(value)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02d} s"
    minutes = round(value / _MINUTE)
    if minutes < _DAY // _MINUTE:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(value / _HOUR)
    return f"{hours // 24} d {hours % 24:02d} h"


def joules_within(mean: float | None, deviation: float | None) -> str:
    """An energy or a cost and its standard deviation [J], in the unit of the former: ``33.4 ± 1.1 MJ``."""
    return within(mean, deviation, "J")


def within(value: float | None, error: float | None, unit: str) -> str:
    """A quantity and how far it may be off, in the unit of the former with a prefix: ``33.4 ± 1.1 MWh``."""
    if value is None or error is None or not (math.isfinite(value) and math.isfinite(error)):
        return NOTHING
    exponent = _exponent(max(abs(value), abs(error)))
    scale = 10.0**exponent
    decimals = min(_decimals(error / scale, 2), _decimals(value / scale, _DIGITS))
    if error and not round(error / scale, decimals):
        decimals += 1
    return f"{value / scale:z.{decimals}f} ± {error / scale:.{decimals}f} {_PREFIXES[exponent]}{unit}"


def seconds_within(value: float | None, error: float | None) -> str:
    """A duration that may be negative, and how far it may be off [s]: ``-2 h 05 min ± 34 min 12 s``."""
    if value is None or error is None or not (math.isfinite(value) and math.isfinite(error)):
        return NOTHING
    return f"{'-' if value < 0 else ''}{seconds(abs(value))} ± {seconds(error)}"


def percent(share: float | None, digits: int = 2) -> str:
    """A share as a percentage: ``62%``, ``5.3%``, ``0.73%``. Less than the whole is never printed as 100%."""
    if share is None or not math.isfinite(share):
        return NOTHING
    if abs(share) < _LEAST_SHARE:
        return "0%"
    while abs(share) < 1.0 and digits < _MOST_DIGITS and _rounded(abs(share), digits) >= 1.0:
        digits += 1
    return f"{figure(100.0 * share, digits)}%"


def more_or_less(share: float | None) -> str:
    """A share of change as a percentage with its sign: ``+53%``, ``-0.1%``."""
    return NOTHING if share is None or not math.isfinite(share) else f"{'-' if share < 0 else '+'}{percent(abs(share))}"


def figure(value: float | None, digits: int = _DIGITS) -> str:
    """A bare number with so many significant digits, all digits of its whole part, and no trailing zeros."""
    if value is None or not math.isfinite(value):
        return NOTHING
    text = _fixed(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def number(value: float | None, digits: int = 4) -> str:
    """A bare number with so many significant digits; that a metric is NaN or infinite is said."""
    return str(value) if value is not None and not math.isfinite(value) else figure(value, digits)


def moment(value: datetime | None) -> str:
    """A point in time, in UTC, to the second."""
    if value is None:
        return NOTHING
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return aware.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """``1 trial``, ``2 trials``, ``2 launches``. Without ``plural`` it is the noun with an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or f'{noun}s'}"


def listed(words: Sequence[object]) -> str:
    """Words with commas between, a dash for none."""
    return ", ".join(map(str, words)) or NOTHING


def _with_prefix(value: float | None, unit: str, *, largest: int = 12) -> str:
    if value is None or not math.isfinite(value):
        return NOTHING
    exponent = min(_exponent(value), largest)
    return f"{_fixed(value / 10.0**exponent, _DIGITS)} {_PREFIXES[exponent]}{unit}"


def _exponent(value: float) -> int:
    """The power of a thousand whose prefix suits a number: with it, one to three digits stand before the point."""
    if not value:
        return 0
    exponent = min(max(3 * math.floor(math.log10(abs(value)) / 3), min(_PREFIXES)), max(_PREFIXES))
    is_thousand = _rounded(abs(value) / 10.0**exponent, _DIGITS) >= 1000.0
    return exponent + 3 if is_thousand and exponent < max(_PREFIXES) else exponent


def _fixed(value: float, digits: int) -> str:
    """So many significant digits, trailing zeros included; a whole number is printed as it is."""
    if value and not _LEAST <= abs(value) < _MOST:
        return f"{value:.{digits}g}"
    if value == int(value):
        return f"{int(value)}"
    return f"{value:.{_decimals(value, digits)}f}"


def _decimals(value: float, digits: int) -> int:
    """How many decimals make so many significant digits."""
    if not _LEAST <= abs(value) < _MOST:
        return 0 if value else digits - 1
    return max(0, digits - 1 - math.floor(math.log10(_rounded(abs(value), digits))))


def _rounded(value: float, digits: int) -> float:
    """The number as it will be printed: 999.7 is printed as a thousand."""
    return float(f"{value:.{digits}g}")
