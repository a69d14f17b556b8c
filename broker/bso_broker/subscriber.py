"""Follow events as they happen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiormq
from aiormq.abc import DeliveredMessage
from typing_extensions import override

from bso_broker.addresses import event_pattern, new_event_queue
from bso_broker.channel import discarded_bytes
from bso_broker.connection import BrokerAddress, is_lost
from bso_broker.messages import Event
from bso_broker.session import Link, Session
from bso_broker.topology import EVENTS

logger = logging.getLogger(__name__)

_PREFETCH = 500


class _SubscriberSession(Session):
    _channel: aiormq.Channel

    def __init__(
        self, address: BrokerAddress, exchange: str, patterns: tuple[str, ...], arrived: asyncio.Queue[_Arrived | None]
    ):
        super().__init__(address)
        self._exchange = exchange
        self._patterns = patterns
        self._arrived = arrived

    @override
    async def open(self) -> None:
        queue = new_event_queue(self.address.login)
        self._channel = await self.channel(await self.connect("bso events"), confirms=False)
        await self._channel.queue_declare(queue, exclusive=True, auto_delete=True)
        for pattern in self._patterns:
            await self._channel.queue_bind(queue, self._exchange, pattern)
        await self._channel.basic_qos(prefetch_count=_PREFETCH)
        await self._channel.basic_consume(queue, self._on_event)

    async def _on_event(self, message: DeliveredMessage) -> None:
        if size := discarded_bytes(message):
            extra = {"action": "event_too_large"}
            logger.warning("skipped an event of %d bytes: %s", size, message.routing_key, extra=extra)
            await self.note_handled(message.delivery_tag or 0)
            return
        properties = message.header.properties
        event = Event(
            routing_key=message.routing_key or "",
            body=message.body,
            message_id=properties.message_id or "",
            headers=properties.headers or {},
        )
        self._arrived.put_nowait(_Arrived(session=self, tag=message.delivery_tag or 0, event=event))

    async def note_handled(self, tag: int) -> None:
        """Let the broker send another event in the place of this one."""
        try:
            await self._channel.basic_ack(tag, wait=False)
        except BaseException as error:
            if not is_lost(error):
                raise

    @override
    def fail(self, cause: BaseException | None) -> None:
        if not self.lost.is_set():
            self._arrived.put_nowait(None)
        super().fail(cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrived:
    session: _SubscriberSession
    tag: int
    event: Event


class EventSubscriber:
    """Iterates over events from the moment it is connected.

    Events published while the connection is away are missed, and ``gaps`` counts how often that may have happened:
    a subscriber that needs all of them reads the event log. The broker holds back events that the reader is too slow
    for.
    """

    def __init__(self, address: BrokerAddress, *patterns: str, exchange: str = EVENTS) -> None:
        self._arrived: asyncio.Queue[_Arrived | None] = asyncio.Queue()  # None: a session was lost
        wanted = patterns or (event_pattern(),)
        self._link = Link(lambda: _SubscriberSession(address, exchange, wanted, self._arrived), name="event subscriber")

    @property
    def connected(self) -> asyncio.Event:
        """Set while events are being received."""
        return self._link.connected

    @property
    def gaps(self) -> int:
        """How often the connection was lost and made again, and events may have been missed."""
        return max(0, self._link.times_connected - 1)

    async def start(self) -> None:
        """Begin connecting in the background."""
        self._link.start()

    async def close(self) -> None:
        """Disconnect; the iteration ends with BrokerClosed."""
        await self._link.stop()

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Events, for ever; raises what is Misconfigured if the first connection shows it."""
        while True:
            if self._arrived.empty():
                await self._link.session()
            arrived = await self._arrived.get()
            if arrived is not None:
                await arrived.session.note_handled(arrived.tag)
                yield arrived.event
