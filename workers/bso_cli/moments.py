"""Points in time as people type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
EXPECTED = "a date (2026-01-31), a time (2026-01-31T12:00, UTC unless it says otherwise), or an age (12h, 30d, 8w)"


def span_from(text: str, *, option: str) -> timedelta:
    """The time that an age stands for. Raises typer.BadParameter, which names the option."""
    age = re.fullmatch(r"(\d{1,5})([hdw])", text.strip())
    if age is None or not int(age[1]):
        raise typer.BadParameter(f"expected a time such as 12h, 30d or 8w, got {text!r}", param_hint=[option])
    return int(age[1]) * _UNITS[age[2]]


def moment_from(text: str, *, option: str, now: datetime) -> datetime:
    """The point in time that a date, a time or an age stands for. Raises typer.BadParameter, which names the option."""
    age = re.fullmatch(r"(\d{1,6})([hdw])", text.strip())
    try:
        if age is not None:
            return now - int(age[1]) * _UNITS[age[2]]
        found = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(f"expected {EXPECTED}, got {text!r}", param_hint=[option]) from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def month_from(text: str, *, option: str) -> str:
    """A month as it is written, ``2026-01``. Raises typer.BadParameter, which names the option."""
    if re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", text.strip()) is None:
        raise typer.BadParameter(f"expected a month such as 2026-01, got {text!r}", param_hint=[option])
    return text.strip()
