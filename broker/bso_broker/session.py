"""Sessions and links: what is set up on a connection lives as long as it, and a link opens the next one, for ever.

aio-pika makes the connection again, after growing pauses; a session sets up channels, queues and consumers anew.
aio-pika would declare queues of the same names: the broker refuses an exclusive one while it takes the old connection
for alive. Callers that wait on a lost session get ConnectionLost and ask the link for the next one.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

import aio_pika
import aiormq

from bso.domain.errors import BsoError, Misconfigured
from bso.log_records import logger_of
from bso.schema.envelope import MAX_ANSWER_BYTES
from bso_broker.connection import BrokerAddress, Connection, explain, is_lost, publish
from bso_broker.errors import BrokerClosed, BrokerUnreachable, ConnectionLost
from bso_broker.pauses import YOUNG_S
from bso_broker.underlay import (
    Outgoing,
    open_channel,
    open_fast_channel,
    underlay_channel_of,
    underlay_of,
    watch,
    watch_consumers,
)

logger = logger_of(__name__)

_FLUSH_TIMEOUT_S = 2.0
_DISCARD_TIMEOUT_S = 1.0


class BrokerSession(ABC):
    """One life of connections and channels: ``lost`` is set once any of them is gone, ``cause`` says why."""

    def __init__(self, address: BrokerAddress) -> None:
        self.address = address
        self.lost = asyncio.Event()
        self.cause: BsoError | None = None
        self.connections: dict[str, Connection] = {}
        """By name; the link hands on those of the session before."""
        self._channels: list[aiormq.Channel] = []

    @abstractmethod
    async def open(self) -> None:
        """Connect and declare; raises an error of ours."""

    @property
    def is_blocked(self) -> bool:
        """Whether the broker takes nothing from one of its connections, because its memory or its disk is full."""
        return any(connection.sockets.is_blocked for connection in self.connections.values())

    async def connect(self, name: str, *, largest_body: int = MAX_ANSWER_BYTES) -> Connection:
        """The connection of this name, once it is open. Bodies larger than ``largest_body`` are not read from it."""
        if name not in self.connections:
            self.connections[name] = Connection(self.address, name=name, largest_body=largest_body)
        connection = await self.connections[name].opened()
        watch(underlay_of(connection), self.fail)
        return connection

    async def channel(self, connection: Connection, *, confirms: bool) -> aio_pika.Channel:
        """Open a channel that belongs to this session, which ends when the channel does."""
        channel = await open_channel(connection, confirms=confirms)
        self._adopt(await underlay_channel_of(channel))
        return channel

    async def fast_channel(self, connection: Connection, *, confirms: bool) -> aiormq.Channel:
        """Open a channel for what a worker does thousands of times per second; else as ``channel``."""
        channel = await open_fast_channel(connection, confirms=confirms)
        self._adopt(channel)
        return channel

    def _adopt(self, channel: aiormq.Channel) -> None:
        if self.lost.is_set():  # what it was opened on may be the next connection already
            raise self.cause or ConnectionLost("the connection to the broker broke")
        self._channels.append(channel)
        watch(channel, lambda cause: self.fail(cause) if channel in self._channels else None)
        watch_consumers(channel, self._consumer_cancelled)

    async def discard(self, channel: aiormq.Channel) -> None:
        """Close a channel of this session, which goes on."""
        self._channels.remove(channel)
        await self._close_all([channel], _DISCARD_TIMEOUT_S)

    def _consumer_cancelled(self, consumer_tag: str) -> None:
        self.fail(ConnectionLost(f"the broker cancelled the consumer {consumer_tag}; was its queue deleted?"))

    def fail(self, cause: BaseException | None) -> None:
        """Give this session up; the link opens the next one. The first cause counts."""
        if not self.lost.is_set():
            self.cause = explain(cause)
            self.lost.set()

    async def publish(self, channel: aiormq.Channel, message: Outgoing, *, exchange: str) -> None:
        """Publish and wait until the broker has taken the message over; a broker that is lost ends this session."""
        try:
            await publish(channel, message, exchange=exchange, timeout_s=self.address.confirm_timeout_s)
        except ConnectionLost as lost:
            self.fail(lost)
            raise

    async def close(self) -> None:
        """Close the channels, never raising; what was written before still goes out, unless the broker is gone."""
        living = not self.lost.is_set()
        self.fail(BrokerClosed("closed by this side"))
        if living:  # the answer to a channel's closing shows that the broker has read everything before
            await self._close_all(self._channels, _FLUSH_TIMEOUT_S)

    async def _close_all(self, channels: list[aiormq.Channel], timeout_s: float) -> None:
        reason = ConnectionLost("closed by this side")  # aiormq's default would look like a cancellation
        closing = [channel.close(reason, timeout=timeout_s) for channel in channels]
        await asyncio.gather(*closing, return_exceptions=True)


S = TypeVar("S", bound=BrokerSession)


class Link(Generic[S]):
    """Keeps one session alive; opens the next whenever it breaks. It never gives up."""

    def __init__(self, new_session: Callable[[], S], *, name: str) -> None:
        self.name = name
        self.connected = asyncio.Event()
        self.last_error: BsoError | None = None
        self._last_loss: str | None = None
        self._new_session = new_session
        self._current: S | None = None
        self.times_connected = 0
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()
        self.on_change: Callable[[], None] = lambda: None

    @property
    def current(self) -> S | None:
        """The session, if there is a living one at the moment."""
        session = self._current
        return session if session is not None and not session.lost.is_set() else None

    @property
    def obstacle(self) -> str | None:
        """What keeps messages from being sent; None: nothing, or nobody has wanted to yet."""
        if self._task is None:
            return None
        session = self.current
        if session is None:
            return str(self.last_error or "connecting")
        return "the broker takes no messages: its memory or its disk is full" if session.is_blocked else None

    def start(self) -> None:
        """Begin connecting in the background."""
        if self._task is None:
            self.times_connected = 0
            self._task = asyncio.create_task(self._run(), name=f"bso-{self.name}")

    async def stop(self) -> None:
        """Close the session and stop connecting. It may be started again."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        await self.announce()

    async def session(self) -> S:
        """Wait for a living session, without a deadline of its own.

        Raises what is misconfigured if the very first attempt shows it: waiting would not help. Later the broker may
        only be restarting, and the attempts go on.
        """
        while (session := self.current) is None:
            if self._task is None:
                raise BrokerClosed(f"the {self.name} is not started, or closed already")
            if isinstance(self.last_error, Misconfigured) and not self.times_connected:
                raise self.last_error
            await self.changed()
        return session

    async def changed(self) -> None:
        """Wait until something happens to this link."""
        async with self._news:
            await self._news.wait()

    async def _run(self) -> None:
        connections: dict[str, Connection] = {}
        try:
            while True:
                _raise_if_cancelled()
                session = self._new_session()
                session.connections = connections
                await self._live(session)
                await asyncio.gather(*(connection.renew() for connection in connections.values()))
        finally:
            await _close_all(connections)

    async def _live(self, session: S) -> None:
        """Open a session, and return when it is over."""
        clock = asyncio.get_running_loop().time
        try:
            if not await self._open(session):
                return
            born_s = clock()
            await session.lost.wait()
            self.last_error = session.cause
            self._warn_of_loss(str(session.cause), lived_s=clock() - born_s)
        finally:
            if self._current is not None:
                self._current = None
                self.connected.clear()
                await self.announce()
            await session.close()

    async def _open(self, session: S) -> bool:
        try:
            async with asyncio.timeout(session.address.set_up_timeout_s):
                await session.open()
        except BaseException as error:
            _raise_if_cancelled()
            if not isinstance(error, Exception) and not is_lost(error):
                raise
            await self._failed(session, error)
            return False
        _raise_if_cancelled()
        self._current = session
        self.times_connected += 1
        self.last_error = None
        self.connected.set()
        await self.announce()
        logger.info("the %s is connected", self.name, extra={"action": "broker_connected", "link": self.name})
        return True

    async def _failed(self, session: S, error: BaseException) -> None:
        if isinstance(error, TimeoutError):
            await _close_all(session.connections)  # aio-pika itself may hang
            error = BrokerUnreachable(f"the broker at {session.address} stopped answering")
        elif is_lost(error):
            error = explain(error)
        if isinstance(error, BsoError):
            level = logging.WARNING if str(error) != str(self.last_error) else logging.DEBUG
            self.last_error = error
            extra = {"action": "broker_unreachable", "link": self.name}
            logger.log(level, "the %s: %s", self.name, error, extra=extra)
        else:
            self.last_error = BrokerUnreachable(f"cannot connect: {error!r}")
            logger.error("the %s cannot connect", self.name, exc_info=error, extra={"action": "connecting_failed"})
        await self.announce()

    def _warn_of_loss(self, cause: str, *, lived_s: float) -> None:
        """Warn, but once only of what ends one session after the other as soon as it has begun."""
        level = logging.DEBUG if lived_s < YOUNG_S and cause == self._last_loss else logging.WARNING
        self._last_loss = cause
        extra = {"action": "broker_connection_lost", "link": self.name}
        logger.log(level, "the %s lost the broker: %s", self.name, cause, extra=extra)

    async def announce(self) -> None:
        """Something has happened to this link, or to its session: let those look who wait for it."""
        self.on_change()
        async with self._news:
            self._news.notify_all()


async def _close_all(connections: dict[str, Connection]) -> None:
    closing = [connection.close() for connection in connections.values()]
    connections.clear()
    await asyncio.gather(*closing)


def _raise_if_cancelled() -> None:
    """Raise CancelledError if this task was cancelled: aiormq turns that into an error of its own where it can.

    It does so when the connection breaks in the same moment; a caller that awaits the task would wait for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
