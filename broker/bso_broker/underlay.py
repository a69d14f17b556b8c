"""Below aio-pika: the transport of its connections, and aiormq's channels where a worker's speed depends on them.

Everything here uses names of aio-pika, aiormq and pamqp that are public and not documented. Nothing else does, and
tests/unit/broker/test_underlay.py says of each what no longer works once it has changed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import aio_pika
import aiormq
from aio_pika.abc import AbstractChannel, AbstractConnection
from aiormq.abc import ChannelFrame
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from aiormq.exceptions import ChannelInvalidStateError
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.constants import FRAME_BODY, FRAME_END_CHAR, FRAME_HEADER, FRAME_HEADER_SIZE
from pamqp.header import ContentHeader
from typing_extensions import override
from yarl import URL

from bso.schema.envelope import MAX_ANSWER_BYTES

_MOST_WAITING = 65536  # bytes: above that, a stream pauses its writers
_FRAME_BUFFER = 1000  # aiormq's 10 make its reader hand over few frames at a time
_BLOCKED, _UNBLOCKED = bytes((0, 10, 0, 60)), bytes((0, 10, 0, 61))  # Connection.Blocked and .Unblocked
_DISCARDED = b"discarded:" + secrets.token_bytes(16)  # nobody can send it

_MARK = 1  # the field "weight" of a content header, which AMQP 0-9-1 wants to be 0 and nobody uses
_FLAGS = slice(12, 14)  # after class, weight and the body's size; then come the properties, and the frame's end
_PROPERTIES = 14
_TYPE, _ENCODING, _HEADERS, _DELIVERY_MODE, _TIMESTAMP, _MORE = 0x8000, 0x4000, 0x2000, 0x1000, 0x0040, 0x0001
_HARD_TO_READ = _HEADERS | _TIMESTAMP | _MORE


class RobustConnection(aio_pika.RobustConnection):
    """A connection of aio-pika's over the transport below. It never gives up connecting."""

    def __init__(self, url: URL, *, largest_body: int = MAX_ANSWER_BYTES) -> None:
        super().__init__(url, fail_fast=False)
        self.sockets = Sockets(is_secure=url.scheme == "amqps", largest_body=largest_body)
        self.kwargs["transport_factory"] = self.sockets

    def set_pause(self, pause_s: float) -> None:
        """Let aio-pika wait so long between two attempts to connect, from now on."""
        self.reconnect_interval = pause_s


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

    def __init__(self, *, is_secure: bool, largest_body: int) -> None:
        self._inner = TLSTransportFactory() if is_secure else TCPTransportFactory()
        self._largest_body = largest_body
        self._reader: FrameReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @override
    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self._inner.create(url, **kwargs)
        self._reader = FrameReader(reader, largest_body=self._largest_body)
        self._writer = CoalescingWriter(reader, writer)
        return self._reader, self._writer

    @property
    def is_blocked(self) -> bool:
        """Whether the broker takes nothing: its memory or its disk is full, and it has said so."""
        return self._reader is not None and self._reader.is_blocked

    def abort(self) -> None:
        """Close the newest socket at once, also where the broker is frozen and answers nothing."""
        if self._writer is not None:
            self._writer.transport.abort()


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


class FrameReader(asyncio.StreamReader):
    """A StreamReader for aiormq that repairs messages while they are read.

    What cannot be read (short strings that are not UTF-8, timestamps no datetime holds) arrives without its
    properties, and marked. RabbitMQ passes such messages on, and pamqp refuses them while the connection reads the
    frame, where nothing could be settled: each redelivery would end the connection again, and all other unsettled
    messages would use up their deliveries with it.

    A body larger than ``largest_body`` is thrown away piece by piece, and one that says how large it was takes its
    place. aiormq would collect it in memory, and as many of them at once as the broker hands over ahead.
    """

    def __init__(self, inner: asyncio.StreamReader, *, largest_body: int) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._inner = inner
        self._largest_body = largest_body
        self._unread: dict[bytes, int] = {}  # per channel, how much of a body still comes that is thrown away
        self._frame = b""
        self._at = 0
        self.is_blocked = False

    @override
    def at_eof(self) -> bool:
        return self._at == len(self._frame) and self._inner.at_eof()

    @override
    async def read(self, n: int = -1) -> bytes:
        return await self._inner.read(n)

    @override
    async def readexactly(self, n: int) -> bytes:
        if self._at == len(self._frame):
            self._frame, self._at = await self._next_frame(), 0
        start, self._at = self._at, self._at + n
        return self._frame[start : self._at]

    async def _next_frame(self) -> bytes:
        while True:
            head = await self._inner.readexactly(FRAME_HEADER_SIZE)  # type, channel, size
            if head.startswith(b"AMQP"):  # no frame: the broker speaks another version of the protocol
                return head
            payload = await self._inner.readexactly(int.from_bytes(head[3:]) + 1)
            if head[0] == FRAME_HEADER:
                return self._content_header(head, payload)
            if self._unread and self._is_unread(head, payload):
                continue
            if payload[:4] in (_BLOCKED, _UNBLOCKED) and head[:3] == b"\1\0\0":
                self.is_blocked = payload[:4] == _BLOCKED
            return head + payload

    def _content_header(self, head: bytes, payload: bytes) -> bytes:
        payload = readable(payload)
        size = int.from_bytes(payload[4:12])
        if size <= self._largest_body:
            return head + payload
        channel = head[1:3]
        self._unread[channel] = size
        body = _DISCARDED + b"%d" % size
        header = payload[:4] + len(body).to_bytes(8) + payload[12:]
        return head + header + bytes((FRAME_BODY,)) + channel + len(body).to_bytes(4) + body + FRAME_END_CHAR

    def _is_unread(self, head: bytes, payload: bytes) -> bool:
        channel = head[1:3]
        left = self._unread.pop(channel, 0)
        if not left or head[0] != FRAME_BODY:
            return False
        left -= len(payload) - 1
        if left > 0:
            self._unread[channel] = left
        return True


def discarded_bytes(body: bytes) -> int:
    """How large the body of a message was, if it was too large and thrown away; else 0."""
    return int(body[len(_DISCARDED) :]) if body.startswith(_DISCARDED) else 0


def is_mended(header: ContentHeader) -> bool:
    """Whether the message came with properties that could not be read and are missing here."""
    return header.weight == _MARK


def readable(payload: bytes) -> bytes:
    """A content header's payload as it is, or if it cannot be read one as long that has no properties and a mark.

    A delivery mode that does not exist becomes "transient": aio-pika raises an error where it makes the message.
    """
    if not _can_be_read(payload):
        # The part after the flags is left where it is, and skipped: the frame's length was read before.
        return payload[:2] + _MARK.to_bytes(2) + payload[4:12] + bytes(2) + payload[_PROPERTIES:]
    flags = int.from_bytes(payload[_FLAGS])
    if flags & _DELIVERY_MODE and not flags & _MORE:
        at = _delivery_mode_at(flags, payload)
        if payload[at : at + 1] not in (b"\1", b"\2"):
            return payload[:at] + b"\1" + payload[at + 1 :]
    return payload


def _can_be_read(payload: bytes) -> bool:
    hard = int.from_bytes(payload[_FLAGS]) & (_HARD_TO_READ | _TYPE | _ENCODING)
    if hard == _HEADERS and payload[_PROPERTIES : _PROPERTIES + 4] == bytes(4):
        hard = 0  # aio-pika sends a table of headers also where there are none
    if not hard & _HARD_TO_READ and payload[_PROPERTIES:-1].isascii():
        return True  # most are: reading each twice would cost as much as everything else here
    try:
        ContentHeader().unmarshal(payload[:-1])
    except Exception:  # noqa: BLE001  # it raises whatever struct, datetime and codecs raise
        return False
    return True


def _delivery_mode_at(flags: int, payload: bytes) -> int:
    at = _PROPERTIES
    if flags & _TYPE:
        at += 1 + payload[at]
    if flags & _ENCODING:
        at += 1 + payload[at]
    if flags & _HEADERS:
        at += 4 + int.from_bytes(payload[at : at + 4])
    return at


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to publish."""

    routing_key: str
    body: bytes
    properties: Basic.Properties


async def publish_burst(
    channel: aiormq.Channel, messages: Sequence[Outgoing], *, exchange: str, mandatory: bool = False
) -> list[asyncio.Future[object]]:
    """Write many small messages as one: per message a third of the cost of aiormq's own publishing.

    Nobody has to take them, unless they are ``mandatory``: what no queue is bound for is confirmed, and not returned.
    Returns their confirmations, which fail when the channel ends, the broker refuses a message or returns it (with
    aiormq's errors); [] on a channel without them.
    """
    async with channel.lock:
        if channel.is_closed:
            raise ChannelInvalidStateError(f"{channel!r} closed")
        frames = [frame for message in messages for frame in _frames(channel, message, exchange, mandatory=mandatory)]
        together = ChannelFrame.marshall(channel_number=channel.number, frames=frames)
        # A broker that does not read makes this wait. Nothing happens between it and the next line, though: the broker
        # counts what is written, and we count along.
        await channel.write_queue.put(together)
        if not channel.publisher_confirms:
            return []
        return [_expect(channel, message if mandatory else None) for message in messages]


def _frames(
    channel: aiormq.Channel, message: Outgoing, exchange: str, *, mandatory: bool
) -> Iterator[Basic.Publish | ContentHeader | ContentBody]:
    yield Basic.Publish(exchange=exchange, routing_key=message.routing_key, mandatory=mandatory)
    yield ContentHeader(properties=message.properties, body_size=len(message.body))
    for start in range(0, len(message.body), channel.max_content_size):
        yield ContentBody(message.body[start : start + channel.max_content_size])


def _expect(channel: aiormq.Channel, returnable: Outgoing | None) -> asyncio.Future[object]:
    channel.delivery_tag += 1
    confirmation: asyncio.Future[object] = channel.create_future()
    channel.confirmations[channel.delivery_tag] = confirmation
    if returnable is not None:  # aiormq finds what is returned by its message_id
        message_id = cast(str, returnable.properties.message_id)
        channel.message_id_delivery_tag[message_id] = channel.delivery_tag
        confirmation.add_done_callback(lambda _: channel.message_id_delivery_tag.pop(message_id, None))
    return confirmation
