"""Epochs of the log: their numbers, the one of a store in memory, and the watch over what a store says of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

from bso.domain.log import FIRST_EPOCH
from bso.service.errors import LogOutdated
from bso.service.ports import LogEpochs
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


class LogWatch:
    """Remembers the epoch of the log, when somebody looked last, and the highest event_id recorded by this process.

    In a store that nobody has replaced by an older one, all three only grow, whatever is deleted from it. Where one of
    them is lower than before, nothing may be decided until somebody begins another epoch.
    """

    def __init__(self, epochs: LogEpochs) -> None:
        self._epochs = epochs
        self._doubt: str | None = None
        self.seen: LogEpoch | None = None
        """The epoch at the last look; None before the first. Take it before asking the store, for ``check``."""
        self.highest_event_id = 0
        """Of what this process has recorded in this epoch. Those of new events must be above it."""

    async def look(self) -> bool:
        """Look, and let the store record it; whether another epoch has begun since the last look.

        Raises LogOutdated, which is recorded for others as well: also those that start later take no commands then.
        """
        problem = partial(self._problem, since=self.seen)
        found = await self._epochs.look(problem)
        reason = problem(found)
        if found is None or reason is not None:
            raise _outdated(reason)
        has_begun = self.seen is not None and found.number != self.seen.number
        if has_begun:
            self._doubt, self.highest_event_id = None, 0
        self.seen = found if self.seen is None else max(found, self.seen, key=_place)
        return has_begun

    @property
    def is_in_doubt(self) -> bool:
        """Whether this process has seen that the store is not the one that it was, in this epoch."""
        return self._doubt is not None

    def check(self, found: LogEpoch | None, *, since: LogEpoch | None) -> None:
        """Compare what a transaction has read with what was ``seen`` before it read. Raises LogOutdated."""
        reason = self._problem(found, since=since)
        if reason is not None:
            raise _outdated(reason)

    def doubt(self, *, above: int, of: LogEpoch | None) -> LogOutdated:
        """The store gave an event_id that is not above one that this process has recorded in the epoch ``of``."""
        doubt = f"it assigned an event_id that is not above {above}"
        if of is None or self.seen is None or of.number == self.seen.number:
            self._doubt = doubt
        return _outdated(doubt)

    def recorded(self, event_ids: Collection[int]) -> None:
        """These event_ids have been committed."""
        self.highest_event_id = max((self.highest_event_id, *event_ids))

    def _problem(self, found: LogEpoch | None, *, since: LogEpoch | None) -> str | None:
        if found is None:
            return "its table bso_log_epoch has no row"
        if since is not None and _place(found) < _place(since):
            return f"a worker checked it at {since.looked_at}, and its last recorded check is of {found.looked_at}"
        if since is not None and found.number == since.number and self._doubt is not None:
            return self._doubt
        return None if found.outdated_at is None else f"detected at {found.outdated_at:%Y-%m-%d %H:%M:%S} UTC"


def _place(epoch: LogEpoch) -> tuple[int, object]:
    return epoch.number, epoch.looked_at


def _outdated(reason: str | None) -> LogOutdated:
    return LogOutdated(
        f"the database holds an older state than before, as after restoring a backup ({reason}): when the restore is "
        "complete, run `bso restored`"
    )
