"""Epochs of the log: their numbers, and the one of a store in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from bso.domain.log import FIRST_EPOCH
from bso.service.records import LogEpoch

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def next_number(now: datetime, *, above: int) -> int:
    """The number of an epoch that begins now: the time, so that what a restored store has forgotten does not matter."""
    return max((now - _EPOCH) // _MICROSECOND, above + 1)


def looked_at(found: LogEpoch, *, problem: str | None, now: datetime) -> LogEpoch:
    """What is recorded after a look: that there was one, later than any before, or that the store is outdated."""
    if problem is None:
        return replace(found, looked_at=max(now, found.looked_at + _MICROSECOND))
    return replace(found, outdated_at=found.outdated_at or now)


class InMemoryLogEpochs:
    """The epoch of a log in memory. ``clock`` gives the time, in UTC; ``raise_event_ids`` takes the lowest to come.

    It returns the highest event_id that was given before.
    """

    def __init__(self, clock: Callable[[], datetime], *, raise_event_ids: Callable[[int], int]) -> None:
        self._clock = clock
        self._raise_event_ids = raise_event_ids
        self.epoch = LogEpoch(number=FIRST_EPOCH, looked_at=_EPOCH)

    async def current(self) -> LogEpoch:
        """The epoch."""
        return self.epoch

    async def look(self, problem: Callable[[LogEpoch | None], str | None]) -> LogEpoch:
        """Record that somebody looked, or, where ``problem`` finds one, that the store is outdated."""
        self.epoch = looked_at(self.epoch, problem=problem(self.epoch), now=self._clock())
        return self.epoch

    async def begin(self) -> LogEpoch:
        """Begin another epoch."""
        now = self._clock()
        highest = self._raise_event_ids(0)
        number = next_number(now, above=max(self.epoch.number, highest))
        self._raise_event_ids(number)
        self.epoch = LogEpoch(number=number, looked_at=now)
        return self.epoch
