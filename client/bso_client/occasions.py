"""The recurrences that one process works for, one after the other."""

from __future__ import annotations

from bso.domain.trial import Outcome
from bso_client.progress import Progress


class Occasion:
    """The recurrence that trials now belong to. ``recurrence_id`` None: the optimizer names it."""

    def __init__(self, given_id: str | None) -> None:
        self.recurrence_id = given_id
        self.failed: list[Progress] = []
        self._given_id = given_id
        self._count = 1
        self._last: Progress | None = None

    @property
    def attempt(self) -> int:
        """The number of the next attempt, as far as this process knows."""
        return len(self.failed) + 1

    def begun(self, progress: Progress) -> None:
        """A trial of this recurrence has begun, or was registered late."""
        self._last = progress
        self.recurrence_id = progress.recurrence_id or self.recurrence_id

    def next_trial(self) -> None:
        """Another trial is due. After the end of a recurrence it opens the next one, under a name of its own."""
        last, self._last = self._last, None
        if last is None:
            return
        if last.has_failed:
            self.failed.append(last)
        if last.should_retry or last.outcome in (Outcome.INTERRUPTED, Outcome.CANCELLED):
            return
        self._count += 1
        self.failed = []
        self.recurrence_id = None if self._given_id is None else f"{self._given_id}-{self._count}"
