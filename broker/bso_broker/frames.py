"""AMQP 0-9-1 frames as bytes: how they are read before aiormq sees them, and written where it would be slow.

A frame is type (1 byte), channel (2), size (4), payload, and the end (0xCE). A message is three kinds of frames: a
method (deliver, publish), a header with the body's size and the properties, and the body in pieces.
https://www.rabbitmq.com/resources/specs/amqp0-9-1.pdf, sections 2.3.5 and 4.2.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pamqp.commands import Basic
from pamqp.constants import (
    FRAME_BODY,
    FRAME_END_CHAR,
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
)
from typing_extensions import override

from bso.tls import TlsFailed
from bso_broker.content_headers import content_header, is_mended, properties_in, readable, short_string

_CHUNK = 65536
_HEARTBEAT = b"\x08\0\0\0\0\0\0" + FRAME_END_CHAR
_SIGN_OF_LIFE_S = 1.0
_BLOCKED, _UNBLOCKED = bytes((0, 10, 0, 60)), bytes((0, 10, 0, 61))  # Connection.Blocked and .Unblocked
_PUBLISH, _DELIVER = bytes((0, 60, 0, 40, 0, 0)), bytes((0, 60, 0, 60))
_RETURN = bytes((0, 60, 0, 50))
_ACK, _NACK = bytes((0, 60, 0, 80)), bytes((0, 60, 0, 120))
_TLS_ALERT = b"\x15\x03"
_DISCARDED = b"discarded:" + secrets.token_bytes(16)  # nobody can send it


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A message that the broker has delivered. ``is_mended``: it lacks its properties, which could not be read."""

    tag: int
    redelivered: bool
    exchange: str
    properties: Basic.Properties
    body: bytes
    is_mended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """The broker has accepted a message that was published, or not. ``is_multiple``: and all before it."""

    tag: int
    is_multiple: bool
    is_accepted: bool


@dataclass(slots=True, kw_only=True)
class Tap:
    """Takes what arrives on one channel before aiormq does, which makes tasks and futures for each message.

    ``on_delivery`` gets messages, ``on_confirmation`` confirmations, and ``on_return`` the message_id of one that no
    queue is bound for, before its confirmation.
    """

    on_delivery: Callable[[Arrived], None] | None = None
    on_confirmation: Callable[[Confirmed], None] | None = None
    on_return: Callable[[str | None], None] | None = None
    _method: bytes = b""  # of the message that is arriving
    _header: bytes = b""
    _size: int = 0
    _pieces: list[bytes] = field(default_factory=list)

    def takes(self, kind: int, payload: bytes) -> bool:
        """Take a frame, unless it is aiormq's."""
        if kind == FRAME_METHOD:
            method = payload[:4]
            is_ours = (method == _DELIVER and self.on_delivery) or (method == _RETURN and self.on_return)
            if is_ours:
                self._method, self._size, self._pieces = payload, 0, []
                return True
            if method in (_ACK, _NACK) and self.on_confirmation is not None:
                is_multiple = bool(payload[12] & 1)
                tag = int.from_bytes(payload[4:12])
                self.on_confirmation(Confirmed(tag=tag, is_multiple=is_multiple, is_accepted=method == _ACK))
                return True
            return False
        if not self._method:  # of a message that aiormq takes
            return False
        if kind == FRAME_HEADER:
            self._header, self._size = payload, int.from_bytes(payload[4:12])
        else:
            self._pieces.append(payload[:-1])
            self._size -= len(payload) - 1
        if self._size <= 0 and self._header:
            self._deliver()
        return True

    def _deliver(self) -> None:
        method, header, pieces = self._method, self._header, self._pieces
        self._method, self._header, self._pieces = b"", b"", []
        if method.startswith(_RETURN):
            assert self.on_return is not None
            self.on_return(properties_in(header).message_id)
            return
        at = 5 + method[4]  # after the consumer's tag
        length = method[at + 9]
        assert self.on_delivery is not None
        self.on_delivery(
            Arrived(
                tag=int.from_bytes(method[at : at + 8]),
                redelivered=bool(method[at + 8] & 1),
                exchange=method[at + 10 : at + 10 + length].decode("utf-8", "replace"),
                properties=properties_in(header),
                body=pieces[0] if len(pieces) == 1 else b"".join(pieces),
                is_mended=is_mended(header),
            )
        )


class FrameReader(asyncio.StreamReader):
    """A StreamReader for aiormq that hands it whole frames, and repairs messages while they are read.

    What cannot be read (short strings that are not UTF-8, timestamps no datetime holds) arrives without its
    properties, and marked. RabbitMQ passes such messages on, and pamqp refuses them while the connection reads the
    frame, where nothing could be settled: each redelivery would end the connection again, and all other unsettled
    messages would use up their deliveries with it.

    A body larger than ``largest_body`` is thrown away piece by piece, and one that says how large it was takes its
    place. aiormq would collect it in memory, and as many of them at once as the broker hands over ahead.

    What a tap takes, by the number of its channel, does not come to aiormq. It still learns that the broker is alive.
    """

    def __init__(
        self, inner: asyncio.StreamReader, *, largest_body: int, clock: Callable[[], float] | None = None
    ) -> None:
        self._clock = clock or asyncio.get_running_loop().time
        super().__init__(loop=asyncio.get_running_loop())
        self._inner = inner
        self._largest_body = largest_body
        self._unread: dict[bytes, int] = {}  # per channel, how much of a body still comes that is thrown away
        self._arrived = b""  # and not handed over
        self._next = 0
        self._frame = b""
        self._at = 0
        self._handed_over_at_s = self._clock()
        self.is_blocked = False
        self.taps: dict[int, Tap] = {}

    @override
    def at_eof(self) -> bool:
        return self._at == len(self._frame) and self._next == len(self._arrived) and self._inner.at_eof()

    @override
    async def read(self, n: int = -1) -> bytes:
        left, self._arrived, self._next = self._arrived[self._next :], b"", 0
        return left or await self._inner.read(n)

    @override
    async def readexactly(self, n: int) -> bytes:
        if self._at == len(self._frame):
            self._frame, self._at = await self._next_frame(), 0
            self._handed_over_at_s = self._clock()
        start, self._at = self._at, self._at + n
        return self._frame[start : self._at]

    async def _next_frame(self) -> bytes:
        while True:
            head = await self._bytes(FRAME_HEADER_SIZE)  # type, channel, size
            if head[0] > FRAME_HEARTBEAT:  # no frame
                _refuse_tls(head)
                if head.startswith(b"AMQP"):  # the broker speaks another version of the protocol
                    return head
            payload = await self._bytes(int.from_bytes(head[3:]) + 1)
            kind = head[0]
            if self._unread and self._is_unread(head, payload):
                continue
            if kind == FRAME_HEADER:
                frames = self._content_header(head, payload)
            else:
                frames = [(kind, payload)]
                if payload[:4] in (_BLOCKED, _UNBLOCKED) and head[:3] == b"\1\0\0":
                    self.is_blocked = payload[:4] == _BLOCKED
            channel = head[1:3]
            tap = self.taps.get(int.from_bytes(channel))
            if tap is None or not all(tap.takes(*each) for each in frames):
                return b"".join([frame(kind, channel, payload) for kind, payload in frames])
            if self._clock() - self._handed_over_at_s > _SIGN_OF_LIFE_S:
                return _HEARTBEAT

    async def _bytes(self, count: int) -> bytes:
        while len(self._arrived) - self._next < count:
            left = self._arrived[self._next :]
            more = await self._inner.read(_CHUNK)
            if not more:
                raise asyncio.IncompleteReadError(left, count)
            self._arrived, self._next = left + more, 0
        start, self._next = self._next, self._next + count
        return self._arrived[start : self._next]

    def _content_header(self, head: bytes, payload: bytes) -> list[tuple[int, bytes]]:
        payload = readable(payload)
        size = int.from_bytes(payload[4:12])
        if size <= self._largest_body:
            return [(FRAME_HEADER, payload)]
        self._unread[head[1:3]] = size
        body = _DISCARDED + b"%d" % size
        header = payload[:4] + len(body).to_bytes(8) + payload[12:]
        return [(FRAME_HEADER, header), (FRAME_BODY, body + FRAME_END_CHAR)]

    def _is_unread(self, head: bytes, payload: bytes) -> bool:
        channel = head[1:3]
        left = self._unread.pop(channel, 0)
        if not left or head[0] != FRAME_BODY:
            return False
        left -= len(payload) - 1
        if left > 0:
            self._unread[channel] = left
        return True


def _refuse_tls(head: bytes) -> None:
    """Raise ConnectionError where a port for TLS has answered: it sees no handshake, and says so in its own way."""
    if head.startswith(_TLS_ALERT):
        problem = TlsFailed("it answers amqp:// with TLS: write amqps://, or the port without TLS (5672)")
        raise ConnectionError("TLS came in place of AMQP") from problem


def frame(kind: int, channel: bytes, payload: bytes) -> bytes:
    """A frame around a payload that ends with the frame's end."""
    return bytes((kind,)) + channel + (len(payload) - 1).to_bytes(4) + payload


def published(
    messages: Iterable[tuple[str, Basic.Properties, bytes]],
    *,
    channel: int,
    exchange: str,
    mandatory: bool,
    largest_piece: int,
) -> bytes:
    """Messages for an exchange, each with its routing key, properties and body, as frames."""
    number = channel.to_bytes(2)
    method = _PUBLISH + short_string(exchange)
    end = bytes((mandatory,)) + FRAME_END_CHAR
    parts: list[bytes] = []
    for routing_key, properties, body in messages:
        parts.append(frame(FRAME_METHOD, number, method + short_string(routing_key) + end))
        parts.append(frame(FRAME_HEADER, number, content_header(properties, len(body))))
        parts += [
            frame(FRAME_BODY, number, body[start : start + largest_piece] + FRAME_END_CHAR)
            for start in range(0, len(body), largest_piece)
        ]
    return b"".join(parts)


def discarded_bytes(body: bytes) -> int:
    """How large the body of a message was, if it was too large and thrown away; else 0."""
    return int(body[len(_DISCARDED) :]) if body.startswith(_DISCARDED) else 0
