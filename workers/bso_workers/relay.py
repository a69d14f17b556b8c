"""The relay: publishes events that their worker recorded and then could not publish."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.errors import BsoError, Rejected
from bso.service.ports import Store
from bso.service.records import StoredEvent
from bso_broker.ports import EventSink
from bso_workers.metrics import Metrics
from bso_workers.outbox import publish

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_MOST_AT_ONCE = 500


class Relay:
    """Looks for old unpublished events again and again. Several at once publish some twice, which does no harm."""

    def __init__(self, *, store: Store, sink: EventSink, metrics: Metrics, age_s: float, interval_s: float) -> None:
        self._store = store
        self._sink = sink
        self._metrics = metrics
        self._age_s = age_s
        self._interval_s = interval_s
        self._unreadable = 0
        self.obstacle: str | None = None
        """Why the last round could not publish what it found; None: it did, or there was nothing."""

    async def run(self) -> None:
        """Relay, for ever."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.relay()
            except BsoError as error:
                _log.info("the relay could not finish its round", action="relay_failed", reason=str(error))

    async def relay(self) -> int:
        """Publish every event that is older than the age and unpublished, the oldest first; returns their number.

        Those that cannot be read stay where they are, and are counted.
        """
        relayed = unreadable = 0
        after: int | None = 0
        while after is not None:
            page = await self._store.unpublished(older_than_s=self._age_s, after=after, limit=_MOST_AT_ONCE)
            try:
                await self._publish(page.events)
            except BsoError as error:
                self.obstacle = f"events that were recorded cannot be published: {error}"
                raise
            await self._store.mark_published([event.event_id for event in page.events])
            relayed += len(page.events)
            unreadable += page.unreadable
            after = page.next_after
            self._metrics.events_relayed.inc(len(page.events))
        self.obstacle = None
        self._report(unreadable)
        if relayed:
            _log.info("published events that nobody had", action="events_relayed", events=relayed)
        return relayed

    def _report(self, unreadable: int) -> None:
        """Warn of events that cannot be read whenever their number has changed."""
        if unreadable and unreadable != self._unreadable:
            _log.warning(
                "events cannot be read, and are not published: `bso replay verify` names their jobs",
                action="events_unreadable",
                events=unreadable,
            )
        self._unreadable = unreadable

    async def _publish(self, events: Sequence[StoredEvent]) -> None:
        """All at once; if one of them can never be published, one by one, without that one: it stays in the log."""
        if not events:
            return
        try:
            await publish(events, sink=self._sink)
        except Rejected as error:
            if len(events) > 1:
                for event in events:
                    await self._publish([event])
                return
            recorded = events[0].recorded
            _log.error(
                "an event can never be published: it is only in the log",
                action="event_impossible",
                job_id=recorded.job_id,
                seq=recorded.seq,
                reason=str(error),
            )
