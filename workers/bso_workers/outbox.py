"""The outbox: events that were just recorded go to the broker, and are then marked as published, many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Protocol

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.errors import BsoError
from bso.service.records import StoredEvent
from bso_broker.messages import event_message
from bso_broker.ports import EventSink
from bso_workers.metrics import Metrics

_log: FilteringBoundLogger = structlog.get_logger(__name__)

MARK_AFTER_S = 1.0
"""How long a published event may stay unmarked: well below the age at which relays take it for forgotten."""
_MOST_AT_ONCE = 500
_MOST_WAITING = 10_000


class PublishedMarks(Protocol):
    """Where it is written down which events have been published."""

    async def mark_published(self, event_ids: Collection[int]) -> None:
        """Say that these events have reached the broker."""
        ...


async def publish(events: Sequence[StoredEvent], *, sink: EventSink) -> None:
    """Publish events and wait until the broker has them. Raises BsoError: any may have been published all the same."""
    await sink.publish_batch([event_message(event.recorded) for event in events])


class EventOutbox:
    """Publishes what the worker has recorded, beside its work. What it cannot publish it leaves to the relay.

    Events are published at once, and marked as published a little later, those of many batches in one statement. A
    worker that dies in between leaves events that the relay publishes again.
    """

    def __init__(
        self, *, sink: EventSink, marks: PublishedMarks, metrics: Metrics, mark_after_s: float = MARK_AFTER_S
    ) -> None:
        self._sink = sink
        self._marks = marks
        self._metrics = metrics
        self._mark_after_s = mark_after_s
        self._waiting: list[StoredEvent] = []
        self._published: list[int] = []
        self._mark_at_s = 0.0
        self._is_flushing = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._news = asyncio.Event()

    def put(self, events: Collection[StoredEvent]) -> None:
        """Take events to be published; returns at once."""
        if not events:
            return
        if len(self._waiting) + len(events) > _MOST_WAITING:
            _log.warning("too many events wait: the relay will publish these", action="outbox_full", events=len(events))
            return
        self._waiting.extend(events)
        self._is_idle.clear()
        self._news.set()

    async def run(self) -> None:
        """Publish and mark, for ever."""
        while True:
            if self._published and self._is_time_to_mark():
                await self._mark()
            elif self._waiting:
                await self._publish_some()
            else:
                await self._something_to_do()

    async def flushed(self) -> None:
        """Publish and mark without delay; return once everything taken is, or is left to the relay."""
        self._is_flushing = True
        self._news.set()
        try:
            await self._is_idle.wait()
        finally:
            self._is_flushing = False

    def _is_time_to_mark(self) -> bool:
        if len(self._published) >= _MOST_AT_ONCE or (self._is_flushing and not self._waiting):
            return True
        return asyncio.get_running_loop().time() >= self._mark_at_s

    async def _something_to_do(self) -> None:
        if not self._published:
            self._is_idle.set()
        self._news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._mark_at_s if self._published else None):
                await self._news.wait()

    async def _publish_some(self) -> None:
        events, self._waiting = self._waiting[:_MOST_AT_ONCE], self._waiting[_MOST_AT_ONCE:]
        try:
            await publish(events, sink=self._sink)
        except BsoError as error:
            _leave_to_relay("events could not be published", len(events), error)
            return
        if not self._published:
            self._mark_at_s = asyncio.get_running_loop().time() + self._mark_after_s
        self._published += [event.event_id for event in events]
        self._metrics.events_published.inc(len(events))

    async def _mark(self) -> None:
        event_ids, self._published = self._published, []
        try:
            await self._marks.mark_published(event_ids)
        except BsoError as error:
            _leave_to_relay("events could not be marked as published", len(event_ids), error)


def _leave_to_relay(what: str, count: int, error: BsoError) -> None:
    _log.warning(
        f"{what}: the relay will publish them again", action="events_left_to_relay", events=count, reason=str(error)
    )
