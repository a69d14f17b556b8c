"""Recorded events published again, in the order in which they were recorded, no faster than asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from bso.domain.errors import Retryable
from bso.domain.log import RecordedEvent
from bso.schema.codec import wire_name
from bso.service.errors import EventUnreadable
from bso.service.records import StoredEvent

_MOST_AT_ONCE = 500
_BATCHES_A_SECOND = 10
_PAUSE_S = 1.0

Send = Callable[[Sequence[StoredEvent]], Awaitable[None]]


class History(Protocol):
    """Where events are read from."""

    async def history(
        self, job_id: str | None = None, *, after: int = 0, before: datetime | None = None, limit: int = 1000
    ) -> Sequence[StoredEvent]:
        """A page of events by event_id, of one job or of all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which events: of these jobs and types, or of all where none are named, recorded from ``since`` to ``before``.

    Those up to the event_id ``after`` are left out; where jobs are named, of the first of them alone.
    """

    jobs: Collection[str] = ()
    types: Collection[str] = ()
    since: datetime | None = None
    before: datetime | None = None
    after: int = 0

    def includes(self, recorded: RecordedEvent) -> bool:
        """Whether type and time of an event are asked for."""
        if self.since is not None and recorded.recorded_at < self.since:
            return False
        return not self.types or wire_name(type(recorded.event)) in self.types


async def publish(
    history: History,
    wanted: Wanted,
    send: Send,
    *,
    rate_per_s: float | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Send the wanted events, at most ``rate_per_s`` a second on average; returns their number.

    One job after another where jobs are named, else as the database numbered them. ``progress`` is called with how many
    were sent since; what ``send`` raises ends it.
    """
    loop = asyncio.get_running_loop()
    began, sent = loop.time(), 0
    at_once = _MOST_AT_ONCE if rate_per_s is None else min(_MOST_AT_ONCE, max(1, int(rate_per_s / _BATCHES_A_SECOND)))
    async for batch in _batches(history, wanted, at_once):
        if rate_per_s is not None:
            await asyncio.sleep(max(0.0, began + sent / rate_per_s - loop.time()))
        await send(batch)
        sent += len(batch)
        progress(len(batch))
    return sent


def patient(
    send: Send, *, patience_s: float, on_failure: Callable[[Retryable], None], pause_s: float = _PAUSE_S
) -> Send:
    """Sends a batch again, all of it, until it has gone out; some of its events may then have been sent twice.

    ``on_failure`` receives the reason, once per batch. An error that lasts longer than ``patience_s`` is raised, and at
    once one that can never be overcome.
    """

    async def send_patiently(events: Sequence[StoredEvent]) -> None:
        loop = asyncio.get_running_loop()
        gives_up_at = loop.time() + patience_s
        has_failed = False
        while True:
            try:
                await send(events)
            except Retryable as error:
                if loop.time() + pause_s > gives_up_at:
                    raise
                if not has_failed:
                    on_failure(error)
                has_failed = True
                await asyncio.sleep(pause_s)
            else:
                return

    return send_patiently


async def _batches(history: History, wanted: Wanted, size: int) -> AsyncIterator[list[StoredEvent]]:
    batch: list[StoredEvent] = []
    after = wanted.after
    for job_id in dict.fromkeys(wanted.jobs) or (None,):
        try:
            async for page in pages(history, job_id, after=after, before=wanted.before):
                for stored in page:
                    if wanted.includes(stored.recorded):
                        batch.append(stored)
                    if len(batch) == size:
                        yield batch
                        batch = []
        except EventUnreadable:
            if batch:
                yield batch
            raise
        after = 0
    if batch:
        yield batch


async def pages(
    history: History, job_id: str | None, *, after: int = 0, before: datetime | None = None
) -> AsyncIterator[Sequence[StoredEvent]]:
    """The log of one job or of all, page by page. Raises EventUnreadable behind the events before it."""
    unreadable: EventUnreadable | None = None
    while unreadable is None:
        try:
            page = await history.history(job_id, after=after, before=before)
        except EventUnreadable as error:
            page, unreadable = error.before, error
        if not page:
            break
        yield page
        after = page[-1].event_id
    if unreadable is not None:
        raise unreadable
