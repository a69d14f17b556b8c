"""When recurrences are due: at once one after the other, every so often, or as cron would."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from bso.cli.recurring.records import Run
from bso.domain.errors import Misconfigured

MOST_COUNTED = 1000
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Schedule(Protocol):
    """The occasions on which a model is wanted."""

    @property
    def since(self) -> datetime:
        """When it began."""
        ...

    @property
    def begins_at_once(self) -> bool:
        """Whether ``since`` is an occasion."""
        ...

    def next_after(self, moment: datetime) -> datetime:
        """The first occasion later than ``moment``. Raises Misconfigured where there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """At ``since`` and after each ``period``, however long a training takes."""

    period: timedelta
    since: datetime

    @property
    def begins_at_once(self) -> bool:
        """Yes."""
        return True

    def next_after(self, moment: datetime) -> datetime:
        """The first occasion later than ``moment``."""
        return self.since + ((moment - self.since) // self.period + 1) * self.period


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """As the five fields of a cron expression say, in this machine's time zone (TZ).

    An hour that the clock skips in spring makes its occasions late by that hour; one that it repeats in autumn has them
    once.
    """

    expression: str
    since: datetime

    @property
    def begins_at_once(self) -> bool:
        """No: what is due at three in the night waits for three in the night."""
        return False

    def next_after(self, moment: datetime) -> datetime:
        """The first occasion later than ``moment``. Raises Misconfigured where there is none."""
        from cronsim import CronSim, CronSimError

        there = moment.astimezone().replace(tzinfo=None)
        try:
            return next(at for at in map(_on_the_wall, CronSim(self.expression, there)) if at > moment)
        except StopIteration as error:
            raise Misconfigured(f"--cron {self.expression!r} never comes: no such date exists") from error
        except CronSimError as error:
            raise Misconfigured(
                f"--cron {self.expression!r} is no schedule ({error}): expected five fields, minute, hour, day of the "
                "month, month and day of the week, as in '0 3 * * *' (every night at three)"
            ) from error


def _on_the_wall(shown: datetime) -> datetime:
    """When this machine's clock on the wall shows this; an hour later if it skips that hour."""
    found = shown.astimezone(UTC)
    return found if found.astimezone().replace(tzinfo=None) == shown else (shown + timedelta(hours=1)).astimezone(UTC)


def schedule_of(run: Run) -> Schedule | None:
    """The schedule of a run; None: one recurrence after the other. Raises Misconfigured where it is none."""
    if run.every is not None:
        return Every(period=period_from(run.every), since=run.began_at)
    if run.cron is None:
        return None
    found = Cron(expression=run.cron, since=run.began_at)
    found.next_after(run.began_at)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The next recurrence is due ``at``; ``missed`` occasions before it are left out, ``since`` the first of them."""

    at: datetime
    missed: int = 0
    since: datetime | None = None


def next_due(schedule: Schedule, *, last: datetime | None, now: datetime, catches_up: bool) -> Due:
    """When the recurrence after the occasion ``last`` is due.

    Occasions that passed meanwhile, because a training took long or nobody was there, are missed: they are left out, or
    with ``catches_up`` made up for by one recurrence at once.
    """
    if last is None and schedule.begins_at_once:
        return Due(at=now)
    passed = _passed(schedule, last or schedule.since, now)
    if passed and catches_up:
        return Due(at=now, missed=len(passed) - 1, since=passed[0])
    return Due(at=schedule.next_after(now), missed=len(passed), since=passed[0] if passed else None)


def _passed(schedule: Schedule, after: datetime, now: datetime) -> list[datetime]:
    """The occasions later than ``after`` that are over, at most MOST_COUNTED of them."""
    found: list[datetime] = []
    upcoming = schedule.next_after(after)
    while upcoming <= now and len(found) < MOST_COUNTED:
        found.append(upcoming)
        upcoming = schedule.next_after(upcoming)
    return found


def period_from(text: str) -> timedelta:
    """The period that ``24h``, ``90m`` or ``1d`` stands for. Raises Misconfigured."""
    found = re.fullmatch(r"(\d{1,9})([smhdw])", text.strip())
    if found is None or int(found[1]) == 0:
        raise Misconfigured(f"--every {text!r} is no period: expected a number with s, m, h, d or w, as in 24h or 90m")
    try:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError as error:
        raise Misconfigured(f"--every {text!r} is longer than can be reckoned with") from error


def duration_in_words(duration: timedelta) -> str:
    """A duration with at most two units: ``5 h 12 min``, ``2 d``."""
    seconds = max(0, round(duration.total_seconds()))
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "min"), (seconds % 60, "s")]
    first = next((index for index, (count, _) in enumerate(parts) if count), len(parts) - 1)
    shown = [part for part in parts[first : first + 2] if part[0]] or [parts[-1]]
    return " ".join(f"{count} {unit}" for count, unit in shown)
