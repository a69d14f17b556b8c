"""Below aio-pika: the transport of its connections, and aiormq's channels where a worker's speed depends on them.

Everything here uses names of aio-pika, aiormq and pamqp that are public and not documented. Nothing else does, and
tests/integration/broker/test_underlay.py says of each what no longer works once it has changed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, cast

import aio_pika
import aiormq
from aio_pika.abc import AbstractChannel, AbstractConnection
from aiormq.abc import DeliveredMessage
from aiormq.connection import TransportFactory
from aiormq.exceptions import AMQPConnectionError, ChannelInvalidStateError
from pamqp.commands import Basic
from typing_extensions import override
from yarl import URL

from bso.schema.envelope import MAX_ANSWER_BYTES
from bso.tls import TlsFailed, TlsOptions, encryption_of, tls_context
from bso_broker.frames import Confirmed, FrameReader, Tap, published

_MOST_WAITING = 65536  # bytes: above that, a stream pauses its writers
_FRAME_BUFFER = 1000  # aiormq's 10 make its reader hand over few frames at a time


class RobustConnection(aio_pika.RobustConnection):
    """A connection of aio-pika's over the transport below. It never gives up connecting."""

    def __init__(self, url: URL, *, tls: TlsOptions, largest_body: int = MAX_ANSWER_BYTES) -> None:
        super().__init__(url, fail_fast=False)
        self.sockets = Sockets(tls=tls, largest_body=largest_body)
        self.kwargs["transport_factory"] = self.sockets

    def set_pause(self, pause_s: float) -> None:
        """Let aio-pika wait so long between two attempts to connect, from now on."""
        self.reconnect_interval = pause_s

    def set_url(self, url: URL) -> None:
        """Let aio-pika connect to this address, from the next attempt on."""
        self.url = url


def underlay_of(connection: AbstractConnection) -> aiormq.Connection:
    """The aiormq connection of the moment."""
    if connection.transport is None:
        raise ChannelInvalidStateError(f"{connection!r} is not connected")
    return cast(aiormq.Connection, connection.transport.connection)


async def underlay_channel_of(channel: AbstractChannel) -> aiormq.Channel:
    """The aiormq channel of the moment."""
    return cast(aiormq.Channel, await channel.get_underlay_channel())


async def open_channel(connection: AbstractConnection, *, confirms: bool) -> aio_pika.Channel:
    """Open a channel that aio-pika does not open again by itself, with all that was declared on it."""
    channel = aio_pika.Channel(connection, publisher_confirms=confirms, on_return_raises=confirms)
    await channel.initialize()
    return channel


async def open_fast_channel(connection: AbstractConnection, *, confirms: bool) -> aiormq.Channel:
    """Open an aiormq channel without aio-pika's objects: these cost a worker 200 us per decision."""
    underlay = underlay_of(connection)
    channel = await underlay.channel(publisher_confirms=confirms, frame_buffer_size=_FRAME_BUFFER)
    return cast(aiormq.Channel, channel)


def watch(resource: aiormq.Connection | aiormq.Channel, ended: Callable[[BaseException | None], object]) -> None:
    """Call ``ended`` with the cause once a connection or channel is gone."""
    resource.closing.add_done_callback(lambda closing: ended(None if closing.cancelled() else closing.exception()))


def watch_consumers(channel: aiormq.Channel, cancelled: Callable[[str], object]) -> None:
    """Call ``cancelled`` with the tag of a consumer that the broker cancels. aio-pika itself does not say so."""
    channel.on_consumer_cancel_callbacks.add(lambda frame: cancelled(str(frame.consumer_tag)))


class Sockets(TransportFactory):
    """Opens the sockets of one connection, one after the other."""

    def __init__(self, *, tls: TlsOptions, largest_body: int) -> None:
        self._tls = tls
        self._largest_body = largest_body
        self._reader: FrameReader | None = None
        self._writer: CoalescingWriter | None = None

    @override
    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self._open(url)
        self._reader = FrameReader(reader, largest_body=self._largest_body)
        self._writer = CoalescingWriter(reader, writer)
        return self._reader, self._writer

    async def _open(self, url: URL) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, with the certificates that the files hold now. Raises what aio-pika takes for a failed attempt."""
        try:
            context = await asyncio.to_thread(tls_context, self._tls) if self._tls.is_on else None
            return await asyncio.open_connection(url.host, url.port, ssl=context)
        except (OSError, TlsFailed) as error:
            raise AMQPConnectionError(*error.args) from error

    @property
    def writer(self) -> CoalescingWriter:
        """What writes to the newest socket. Raises ChannelInvalidStateError before there is one."""
        if self._writer is None:
            raise ChannelInvalidStateError("no socket is open")
        return self._writer

    @property
    def encryption(self) -> str:
        """How the newest socket is encrypted, and what was verified, in words."""
        connection = None if self._writer is None else self._writer.get_extra_info("ssl_object")
        return encryption_of(None if connection is None else connection.version(), self._tls)

    @property
    def is_blocked(self) -> bool:
        """Whether the broker takes nothing: its memory or its disk is full, and it has said so."""
        return self._reader is not None and self._reader.is_blocked

    def tap(self, channel: aiormq.Channel, tap: Tap) -> None:
        """Let the tap take what arrives on a channel of the newest socket, until the channel ends."""
        if self._reader is None:
            raise ChannelInvalidStateError(f"{channel!r} has no socket")
        taps, number = self._reader.taps, channel.number
        taps[number] = tap
        watch(channel, lambda _: taps.pop(number, None) if taps.get(number) is tap else None)

    def abort(self) -> None:
        """Close the newest socket at once, also where the broker is frozen and answers nothing."""
        if self._writer is not None:
            self._writer.transport.abort()


async def not_tapped(message: DeliveredMessage) -> None:
    """Take what a consumer gets from aiormq, where a tap takes everything."""
    raise AssertionError(f"expected delivery {message.delivery_tag} to be taken before aiormq")


class CoalescingWriter(asyncio.StreamWriter):
    """One system call for everything that is written in one turn of the event loop, unless that is much.

    aiormq hands each frame to the socket by itself; for small messages these calls are most of what publishing costs.
    aio-pika drains after each message: what waits for the end of the turn is little enough not to count.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._turn = asyncio.get_running_loop()
        super().__init__(writer.transport, writer.transport.get_protocol(), reader, self._turn)
        self._predecessor = writer  # would close the transport if it were collected
        self._waiting: list[bytes | bytearray | memoryview] = []

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._waiting:
            self._turn.call_soon(self._flush)
        self._waiting.append(data)

    def _flush(self) -> None:
        if self._waiting:
            together = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
            self._waiting.clear()
            if not self.transport.is_closing():  # who waits for an answer learns of the loss from the reader
                super().write(together)

    @override
    async def drain(self) -> None:
        if sum(map(len, self._waiting)) > _MOST_WAITING:
            self._flush()
        await super().drain()

    @override
    def write_eof(self) -> None:
        self._flush()
        super().write_eof()

    @override
    def close(self) -> None:
        self._flush()
        super().close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to publish."""

    routing_key: str
    body: bytes
    properties: Basic.Properties


class BurstChannel:
    """A channel whose messages are written past aiormq: many small ones at once, those of all callers in one turn.

    Per message that is a sixth of the cost of aiormq's own publishing, whose queue lets ten callers in at a time.
    Nothing waits for a broker that does not read: what is written lies in memory until it does.
    """

    def __init__(self, channel: aiormq.Channel, sockets: Sockets) -> None:
        self._channel = channel
        self._writer = sockets.writer

    def write(self, messages: Sequence[Outgoing], *, exchange: str, mandatory: bool = False) -> None:
        """Write messages before anything else is written. Raises ChannelInvalidStateError once the channel is gone."""
        if self._channel.is_closed:
            raise ChannelInvalidStateError(f"{self._channel!r} closed")
        together = published(
            [(message.routing_key, message.properties, message.body) for message in messages],
            channel=self._channel.number,
            exchange=exchange,
            mandatory=mandatory,
            largest_piece=self._channel.max_content_size,
        )
        self._writer.write(together)


class Outcome(Enum):
    """What became of messages that were published: of the worst of them."""

    TAKEN = 1
    REFUSED = 2
    RETURNED = 3  # no queue is bound for it


class ConfirmedChannel(BurstChannel):
    """A channel on which only bursts are written; the confirmations of a burst are one future."""

    def __init__(self, channel: aiormq.Channel, sockets: Sockets) -> None:
        super().__init__(channel, sockets)
        self._written = 0
        self._bursts: OrderedDict[int, _Burst] = OrderedDict()  # by delivery tag
        self._mandatory: dict[str | None, _Burst] = {}  # by message_id
        sockets.tap(channel, Tap(on_confirmation=self._confirmed, on_return=self._returned))
        watch(channel, self._ended)

    def publish(
        self, messages: Sequence[Outgoing], *, exchange: str, mandatory: bool = False
    ) -> asyncio.Future[Outcome]:
        """Write messages; the future fails with the cause when the channel ends.

        ``mandatory``: some queue has to take each, which has a message_id of its own.
        """
        burst = _Burst(asyncio.get_running_loop().create_future(), left=len(messages))
        self.write(messages, exchange=exchange, mandatory=mandatory)
        for message in messages:  # counted in the order in which they are written: the broker counts, too
            self._written += 1
            self._bursts[self._written] = burst
            if mandatory:
                message_id = message.properties.message_id
                self._mandatory[message_id] = burst
                burst.outcome.add_done_callback(partial(self._forget, message_id, burst))
        if not messages:
            burst.outcome.set_result(Outcome.TAKEN)
        return burst.outcome

    def _forget(self, message_id: str | None, burst: _Burst, _: object) -> None:
        if self._mandatory.get(message_id) is burst:  # it may have been published again since
            del self._mandatory[message_id]

    def _returned(self, message_id: str | None) -> None:
        if message_id in self._mandatory:
            self._mandatory[message_id].worst = Outcome.RETURNED

    def _confirmed(self, one: Confirmed) -> None:
        if not one.is_multiple:
            self._settle(one.tag, is_accepted=one.is_accepted)
            return
        while self._bursts and (oldest := next(iter(self._bursts))) <= one.tag:
            self._settle(oldest, is_accepted=one.is_accepted)

    def _settle(self, tag: int, *, is_accepted: bool) -> None:
        burst = self._bursts.pop(tag, None)
        if burst is None:
            return
        burst.left -= 1
        if not is_accepted and burst.worst is Outcome.TAKEN:
            burst.worst = Outcome.REFUSED
        if not burst.left and not burst.outcome.done():
            burst.outcome.set_result(burst.worst)

    def _ended(self, cause: BaseException | None) -> None:
        for burst in self._bursts.values():
            if not burst.outcome.done():
                burst.outcome.set_exception(cause or ChannelInvalidStateError("the channel has ended"))
                burst.outcome.exception()  # nobody has to wait for it
        self._bursts.clear()


@dataclass(slots=True)
class _Burst:
    outcome: asyncio.Future[Outcome]
    left: int
    worst: Outcome = Outcome.TAKEN
