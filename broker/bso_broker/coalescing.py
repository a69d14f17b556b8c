"""One system call for everything that is written in one turn of the event loop.

aiormq hands each frame to the socket by itself; for small messages these calls are most of what publishing costs.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import aiormq
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from typing_extensions import override
from yarl import URL

from bso_broker.channel import Channel
from bso_broker.mending import MendingReader


class CoalescingWriter(asyncio.StreamWriter):
    """A StreamWriter that keeps what is written until the loop's next turn, or until somebody drains or closes."""

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


class _Coalescing(TransportFactory):
    def __init__(self, inner: TransportFactory) -> None:
        self._inner = inner

    @override
    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self._inner.create(url, **kwargs)
        return MendingReader(reader), CoalescingWriter(reader, writer)


class Connection(aiormq.Connection):
    """A connection whose frames go out together, whose publishers rarely wait, and that no odd message harms."""

    FRAME_BUFFER_SIZE = 1000  # aiormq's 10 make its reader hand over few frames at a time

    def __init__(self, url: URL) -> None:
        secure = url.scheme == "amqps"
        super().__init__(url, transport_factory=_Coalescing(TLSTransportFactory() if secure else TCPTransportFactory()))

    @override
    async def channel(
        self,
        channel_number: int | None = None,
        publisher_confirms: bool = True,
        frame_buffer_size: int = FRAME_BUFFER_SIZE,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Channel:
        """Open a channel of ours; aiormq has no other way to name its class."""
        await self.connected.wait()
        if self.is_closed:
            raise RuntimeError(f"{self!r} closed")
        number = channel_number or next(free for free in count(1) if free not in self.channels)
        channel = Channel(self, number, publisher_confirms=publisher_confirms, frame_buffer=frame_buffer_size, **kwargs)
        self.channels[number] = channel
        await channel.open(timeout=timeout)
        return channel

    @property
    def is_blocked(self) -> bool:
        """Whether the broker takes nothing from it: its memory or its disk is full, and it has said so."""
        # aiormq has no public name for it; it is this class' attribute too, since both classes have the same name.
        return self.connected.is_set() and not self.__connection_unblocked.is_set()
