"""Publishes and receives events and replies in memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence

from bso_broker.errors import BrokerClosed
from bso_broker.messages import Event, Reply, check_size
from bso_broker.publisher import check_reply_address
from tests.fakes.memory_broker.wire import Hearer, Wire


class MemoryEventPublisher:
    """Tells ``hearers``: those of live events where none are given."""

    def __init__(self, wire: Wire, hearers: list[Hearer] | None = None) -> None:
        self._wire = wire
        self._hearers = wire.hearers if hearers is None else hearers

    async def publish_batch(self, events: Sequence[Event], *, timeout_s: float = 10.0) -> None:
        """Publish events; PublishFailed."""
        await self._wire.until_up(timeout_s)
        for hearer in list(self._hearers):
            for event in events:
                hearer.hear(event)


class MemoryReplyPublisher:
    """Puts replies into mailboxes; a mailbox that is gone takes none, and that is no error."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def reply_batch(self, replies: Sequence[Reply], *, timeout_s: float = 5.0) -> None:
        """Answer commands; a forged address among them raises before any is answered."""
        for reply in replies:
            check_reply_address(reply.reply_to, reply.user_id)
            check_size(reply.body)
        await self._wire.until_up(timeout_s)
        for reply in replies:
            mailbox = self._wire.mailboxes.get(reply.reply_to)
            if mailbox is not None:
                mailbox.deliver(reply.correlation_id, reply.body)


class MemorySubscriber:
    """Iterates over events from the moment it is started."""

    def __init__(self, wire: Wire, hearers: list[Hearer], patterns: tuple[str, ...]) -> None:
        self._wire = wire
        self._hearers = hearers
        self._patterns = patterns
        self._heard: asyncio.Queue[Event | None] = asyncio.Queue()
        self.connected = asyncio.Event()
        self.gaps = 0

    async def start(self) -> None:
        """Hear events from now on."""
        self._wire.parts.append(self)
        self._hearers.append(self)
        if self._wire.up.is_set():
            self.connected.set()

    async def close(self) -> None:
        """Hear no more; the iteration ends with BrokerClosed."""
        if self in self._wire.parts:
            self._wire.parts.remove(self)
            self._hearers.remove(self)
        self.connected.clear()
        self._heard.put_nowait(None)

    def hear(self, event: Event) -> None:
        """Keep an event that matches."""
        if any(pattern_matches(pattern, event.routing_key) for pattern in self._patterns):
            self._heard.put_nowait(event)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Events, until closed."""
        while (event := await self._heard.get()) is not None:
            yield event
        raise BrokerClosed("the event subscriber is closed")

    def connection_lost(self) -> None:
        """Miss what comes now."""
        self.connected.clear()

    def connection_made(self) -> None:
        """Hear again."""
        self.gaps += 1
        self.connected.set()


def pattern_matches(pattern: str, key: str) -> bool:
    """Whether a topic exchange sends a message with this key to a queue bound with this pattern."""
    words = {"*": r"[^.]+", "#": r".*"}
    translated = r"\.".join(words.get(word, re.escape(word)) for word in pattern.split("."))
    return re.fullmatch(translated.replace(r"\..*", r"(\..*)?"), key) is not None
