"""What commands print: tables and words for people, JSON for programs, quantities with their units."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
NOTHING = "–"


@cache
def people() -> Console:
    """Where people read results: standard output."""
    return Console(highlight=False)


@cache
def onlookers() -> Console:
    """Where people read progress and complaints: standard error, so that a pipe gets results alone."""
    return Console(stderr=True, highlight=False)


def print_json(value: object) -> None:
    """One JSON object on one line; numbers that JSON lacks become the strings "NaN" and "Infinity"."""
    from bso.schema.envelope import dump

    sys.stdout.write(dump(value).decode() + "\n")
    sys.stdout.flush()


def table(
    title: str, *columns: str, right: Iterable[str] = (), flexible: Iterable[str] = (), caption: str | None = None
) -> Table:
    """An empty table. Columns in ``right`` hold numbers; on a narrow screen only those in ``flexible`` give way."""
    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    numbers, yielding = set(right), set(flexible)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in numbers else "left"
        made.add_column(escape(column), justify=justify, overflow="fold", no_wrap=column not in yielding)
    return made


def joules(value: float | None) -> str:
    """An energy or a cost with three significant digits."""
    return _scaled(value, "J")


def watts(value: float | None) -> str:
    """A power with three significant digits."""
    return _scaled(value, "W")


def seconds(value: float | None) -> str:
    """A duration: fractions below a minute, minutes and hours above."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value < 60:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def percent(value: float | None) -> str:
    """A share as a percentage."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.0%}"


def number(value: float | None, digits: int = 4) -> str:
    """A bare number with so many significant digits."""
    return NOTHING if value is None else f"{value:.{digits}g}"


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


def _scaled(value: float | None, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return NOTHING
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
