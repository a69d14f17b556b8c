"""Messages whose properties cannot be read arrive without them, and marked, instead of ending the connection.

RabbitMQ passes on short strings that are not UTF-8, and timestamps no datetime holds. pamqp refuses them while the
connection reads the frame, where nothing could be settled: each redelivery would end the connection again, and all
other unsettled messages would use up their deliveries with it.
"""

from __future__ import annotations

import asyncio

from pamqp.constants import FRAME_HEADER
from pamqp.header import ContentHeader
from typing_extensions import override

_MARK = 1  # the field "weight" of a content header, which AMQP 0-9-1 wants to be 0 and nobody uses
_FLAGS = slice(12, 14)  # after class, weight and the body's size; then come the properties, and the frame's end
_HARD_TO_READ = 0x2000 | 0x0040 | 0x0001  # headers, timestamp, more flags


def is_mended(header: ContentHeader) -> bool:
    """Whether the message came with properties that could not be read and are missing here."""
    return header.weight == _MARK


class MendingReader(asyncio.StreamReader):
    """A StreamReader for aiormq, which reads a frame in three pieces: type, rest of the head, payload and end."""

    def __init__(self, inner: asyncio.StreamReader) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._inner = inner
        self._piece = 0
        self._is_header = False

    @override
    def at_eof(self) -> bool:
        return self._inner.at_eof()

    @override
    async def read(self, n: int = -1) -> bytes:
        return await self._inner.read(n)

    @override
    async def readexactly(self, n: int) -> bytes:
        data = await self._inner.readexactly(n)
        if self._piece == 0:
            self._is_header = data[0] == FRAME_HEADER
        self._piece = (self._piece + 1) % 3
        return mended(data) if self._is_header and self._piece == 0 else data


def mended(payload: bytes) -> bytes:
    """A content header's payload as it is, or if it cannot be read one as long that has no properties and a mark."""
    if _can_be_read(payload):
        return payload
    # What follows the flags is left where it is, and skipped: the frame's length was read before.
    return payload[:2] + _MARK.to_bytes(2, "big") + payload[4:12] + bytes(2) + payload[14:]


def _can_be_read(payload: bytes) -> bool:
    is_easy = not int.from_bytes(payload[_FLAGS], "big") & _HARD_TO_READ
    if is_easy and payload[14:-1].isascii():
        return True  # most are: reading each twice would cost as much as everything else here
    try:
        ContentHeader().unmarshal(payload[:-1])
    except Exception:  # noqa: BLE001  # it raises whatever struct, datetime and codecs raise
        return False
    return True
