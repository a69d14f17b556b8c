"""Quantities as people read them: three significant digits, and a unit that suits."""

from __future__ import annotations

import math

NOTHING = "–"
"""What stands for a quantity that is not known, or not finite."""

_PREFIXES = {-12: "p", -9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T"}
_DIGITS = 3
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
    if mean is None or deviation is None or not (math.isfinite(mean) and math.isfinite(deviation)):
        return NOTHING
    exponent = _exponent(mean)
    unit = 10.0**exponent
    exact, about = _fixed(mean / unit, _DIGITS), _fixed(deviation / unit, 2)
    as_exact = f"{deviation / unit:.{len(exact.partition('.')[2])}f}"  # no more decimals than the mean has
    if len(as_exact) < len(about) and "." in exact and float(as_exact):
        about = as_exact
    return f"{exact} ± {about} {_PREFIXES[exponent]}J"


def percent(share: float | None) -> str:
    """A share as a percentage: ``62%``, ``5.3%``, ``0.73%``."""
    if share is None or not math.isfinite(share):
        return NOTHING
    return f"{figure(100.0 * share, 2)}%"


def more_or_less(share: float | None) -> str:
    """A share of change as a percentage with its sign: ``+53%``, ``-0.1%``."""
    return NOTHING if share is None or not math.isfinite(share) else f"{'-' if share < 0 else '+'}{percent(abs(share))}"


def figure(value: float | None, digits: int = _DIGITS) -> str:
    """A bare number with so many significant digits, all digits of its whole part, and no trailing zeros."""
    if value is None or not math.isfinite(value):
        return NOTHING
    text = _fixed(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _with_prefix(value: float | None, unit: str, *, largest: int = 12) -> str:
    if value is None or not math.isfinite(value):
        return NOTHING
    exponent = min(_exponent(value), largest)
    return f"{_fixed(value / 10.0**exponent, _DIGITS)} {_PREFIXES[exponent]}{unit}"


def _exponent(value: float) -> int:
    """The power of a thousand whose prefix suits a number: with it, one to three digits stand before the point."""
    rounded = _rounded(abs(value), _DIGITS)
    if not rounded:
        return 0
    return min(max(3 * math.floor(math.log10(rounded) / 3), min(_PREFIXES)), max(_PREFIXES))


def _fixed(value: float, digits: int) -> str:
    """So many significant digits, trailing zeros included; a whole number is printed as it is."""
    if value and not _LEAST <= abs(value) < _MOST:
        return f"{value:.{digits}g}"
    if value == int(value):
        return f"{int(value)}"
    decimals = digits - 1 - math.floor(math.log10(_rounded(abs(value), digits)))
    return f"{value:.{max(0, decimals)}f}"


def _rounded(value: float, digits: int) -> float:
    """The number as it will be printed: 999.7 is printed as a thousand."""
    return float(f"{value:.{digits}g}")
