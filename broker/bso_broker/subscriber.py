"""Follow events as they happen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aio_pika.abc import AbstractIncomingMessage
from typing_extensions import override

from bso.log_records import logger_of
from bso_broker.addresses import event_pattern, new_event_queue
from bso_broker.connection import BrokerAddress, is_lost
from bso_broker.frames import discarded_bytes
from bso_broker.messages import Event
from bso_broker.session import BrokerSession, Link
from bso_broker.topology import EVENTS

logger = logger_of(__name__)

_PREFETCH = 500


class _SubscriberSession(BrokerSession):
    def __init__(
        self,
        address: BrokerAddress,
        exchange: str,
        patterns: tuple[str, ...],
        arrived: asyncio.Queue[AbstractIncomingMessage | None],
    ):
        super().__init__(address)
        self._exchange = exchange
        self._patterns = patterns
        self._arrived = arrived

    @override
    async def open(self) -> None:
        channel = await self.channel(await self.connect("bso events"), confirms=False)
        queue = await channel.declare_queue(new_event_queue(self.address.login), exclusive=True, auto_delete=True)
        for pattern in self._patterns:
            await queue.bind(self._exchange, pattern)
        await channel.set_qos(prefetch_count=_PREFETCH)
        await queue.consume(self._on_event)

    async def _on_event(self, message: AbstractIncomingMessage) -> None:
        if size := discarded_bytes(message.body):
            extra = {"action": "event_too_large"}
            logger.warning("skipped an event of %d bytes: %s", size, message.routing_key, extra=extra)
            await _note_handled(message)
            return
        self._arrived.put_nowait(message)

    @override
    def fail(self, cause: BaseException | None) -> None:
        if not self.lost.is_set():
            self._arrived.put_nowait(None)
        super().fail(cause)


async def _note_handled(message: AbstractIncomingMessage) -> None:
    """Let the broker send another event in the place of this one."""
    try:
        await message.ack()
    except BaseException as error:
        if not is_lost(error):
            raise


class EventSubscriber:
    """Iterates over events from the moment it is connected.

    Events published while the connection is away are missed, and ``gaps`` counts how often that may have happened:
    a subscriber that needs all of them reads the event log. The broker holds back events that the reader is too slow
    for.
    """

    def __init__(self, address: BrokerAddress, *patterns: str, exchange: str = EVENTS) -> None:
        self._arrived: asyncio.Queue[AbstractIncomingMessage | None] = asyncio.Queue()  # None: a session was lost
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
            message = await self._arrived.get()
            if message is not None:
                await _note_handled(message)
                yield Event(
                    routing_key=message.routing_key or "",
                    body=message.body,
                    message_id=message.message_id or "",
                    headers=message.headers,
                )
