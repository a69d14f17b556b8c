"""Sessions and links: what is set up on a connection lives as long as it, and a link opens the next one, for ever.

aio-pika's robust connections restore too little (see DECISIONS): here a session is made from nothing each time, and
callers that wait on a lost session get ConnectionLost and ask the link for the next one.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import aiormq
from aiormq.exceptions import PublishError
from pamqp.commands import Basic
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from bso.domain.errors import BsoError, Misconfigured
from bso.schema.envelope import MAX_ANSWER_BYTES
from bso_broker.channel import check_size
from bso_broker.coalescing import Connection
from bso_broker.connection import BrokerAddress, connect, explain, is_lost
from bso_broker.errors import BrokerClosed, BrokerUnreachable, ConnectionLost, TopologyMissing
from bso_broker.pauses import FIRST_BACKOFF_S, LONGEST_BACKOFF_S, YOUNG_S, Pauses

logger = logging.getLogger(__name__)

_FLUSH_TIMEOUT_S = 2.0
_CLOSE_TIMEOUT_S = 1.0


class Session(ABC):
    """One life of connections and channels: ``lost`` is set once any of them is gone, ``cause`` says why."""

    def __init__(self, address: BrokerAddress) -> None:
        self.address = address
        self.lost = asyncio.Event()
        self.cause: BsoError | None = None
        self._connections: list[Connection] = []
        self._channels: list[aiormq.Channel] = []

    @abstractmethod
    async def open(self) -> None:
        """Connect and declare; raises an error of ours."""

    @property
    def is_blocked(self) -> bool:
        """Whether the broker takes nothing from one of its connections, because its memory or its disk is full."""
        return any(connection.is_blocked for connection in self._connections)

    async def connect(self, name: str) -> Connection:
        """Open a connection that belongs to this session."""
        connection = await connect(self.address, name=name)
        self._connections.append(connection)
        connection.closing.add_done_callback(self._gone)
        return connection

    async def channel(
        self, connection: Connection, *, confirms: bool, largest_body: int = MAX_ANSWER_BYTES
    ) -> aiormq.Channel:
        """Open a channel that belongs to this session, which ends when the channel does.

        What is larger than ``largest_body`` arrives on it without its body.
        """
        channel = await connection.channel(publisher_confirms=confirms, largest_body=largest_body)
        self._channels.append(channel)
        channel.closing.add_done_callback(lambda closing: self._gone(closing) if channel in self._channels else None)
        channel.on_consumer_cancel_callbacks.add(self._consumer_cancelled)
        return channel

    async def discard(self, channel: aiormq.Channel) -> None:
        """Close a channel of this session, which goes on."""
        self._channels.remove(channel)
        await self._close_all([channel], _CLOSE_TIMEOUT_S)

    def _gone(self, closing: asyncio.Future[None]) -> None:
        self.fail(None if closing.cancelled() else closing.exception())

    def _consumer_cancelled(self, frame: Basic.Cancel) -> None:
        self.fail(ConnectionLost(f"the broker cancelled the consumer {frame.consumer_tag}; was its queue deleted?"))

    def fail(self, cause: BaseException | None) -> None:
        """Give this session up; the link opens the next one. The first cause counts."""
        if not self.lost.is_set():
            self.cause = explain(cause)
            self.lost.set()

    async def close(self) -> None:
        """Close everything, never raising; what was written before still goes out, unless the broker is gone."""
        living = not self.lost.is_set()
        self.fail(BrokerClosed("closed by this side"))
        if living:  # the answer to a channel's closing shows that the broker has read everything before
            await self._close_all(self._channels, _FLUSH_TIMEOUT_S)
        await self._close_all(self._connections, _CLOSE_TIMEOUT_S)

    async def _close_all(self, resources: Sequence[aiormq.Channel | aiormq.Connection], timeout_s: float) -> None:
        reason = ConnectionLost("closed by this side")  # aiormq's default would look like a cancellation
        closing = [resource.close(reason, timeout=timeout_s) for resource in resources]
        await asyncio.gather(*closing, return_exceptions=True)


S = TypeVar("S", bound=Session)


async def open_session(new_session: Callable[[], S]) -> S:
    """Open a session, or leave nothing behind and raise an error of ours."""
    session = new_session()
    try:
        async with asyncio.timeout(session.address.set_up_timeout_s):
            await session.open()
    except TimeoutError as error:
        await session.close()
        raise BrokerUnreachable(f"the broker at {session.address} stopped answering") from error
    except BaseException as error:
        await session.close()
        if is_lost(error):
            raise explain(error) from error
        raise
    return session


class Link(Generic[S]):
    """Keeps one session alive; opens the next, with growing pauses, whenever it breaks. It never gives up."""

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
        pauses = Pauses()
        clock = asyncio.get_running_loop().time
        while True:
            session = await self._open_persistently()
            born_s = clock()
            try:
                await session.lost.wait()
                self.last_error = session.cause
                self._tell_of_loss(str(session.cause), lived_s=clock() - born_s)
            finally:
                self._current = None
                self.connected.clear()
                await self.announce()
                await session.close()
            await asyncio.sleep(pauses.after(clock() - born_s))

    def _tell_of_loss(self, cause: str, *, lived_s: float) -> None:
        """Warn, but once only of what ends one session after the other as soon as it has begun."""
        level = logging.DEBUG if lived_s < YOUNG_S and cause == self._last_loss else logging.WARNING
        self._last_loss = cause
        extra = {"action": "broker_connection_lost", "link": self.name}
        logger.log(level, "the %s lost the broker: %s", self.name, cause, extra=extra)

    async def _open_persistently(self) -> S:
        retrying = AsyncRetrying(
            wait=wait_random_exponential(multiplier=FIRST_BACKOFF_S, max=LONGEST_BACKOFF_S),
            retry=retry_if_exception_type(Exception),
            before_sleep=self._failed,
        )
        _raise_if_cancelled()
        session: S = await retrying(open_session, self._new_session)
        try:
            _raise_if_cancelled()
        except asyncio.CancelledError:
            await session.close()
            raise
        self._current = session
        self.times_connected += 1
        self.last_error = None
        self.connected.set()
        await self.announce()
        logger.info("the %s is connected", self.name, extra={"action": "broker_connected", "link": self.name})
        return session

    async def _failed(self, state: RetryCallState) -> None:
        _raise_if_cancelled()
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, BsoError):
            news = str(error) != str(self.last_error)
            self.last_error = error
            extra = {"action": "broker_unreachable", "link": self.name}
            logger.log(logging.WARNING if news else logging.DEBUG, "the %s: %s", self.name, error, extra=extra)
        else:
            self.last_error = BrokerUnreachable(f"cannot connect: {error!r}")
            logger.error("the %s cannot connect", self.name, exc_info=error, extra={"action": "connecting_failed"})
        await self.announce()

    async def announce(self) -> None:
        """Something has happened to this link, or to its session: let those look who wait for it."""
        self.on_change()
        async with self._news:
            self._news.notify_all()


def _raise_if_cancelled() -> None:
    """Raise CancelledError if this task was cancelled: aiormq turns that into an error of its own where it can.

    It does so when the connection breaks in the same moment; a caller that awaits the task would wait for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def publish_confirmed(
    session: Session,
    channel: aiormq.Channel,
    body: bytes,
    *,
    exchange: str,
    routing_key: str,
    properties: Basic.Properties,
    mandatory: bool,
) -> None:
    """Publish and wait until the broker has taken the message over.

    A broker that does not confirm in time is taken for frozen: the session is given up and ConnectionLost raised.
    """
    check_size(body)
    try:
        async with asyncio.timeout(session.address.confirm_timeout_s):
            await channel.basic_publish(
                body,
                exchange=exchange,
                routing_key=routing_key,
                properties=properties,
                mandatory=mandatory,
                wait=False,
            )
    except TimeoutError as error:
        lost = ConnectionLost(f"no confirmation within {session.address.confirm_timeout_s:g} s")
        session.fail(lost)
        raise lost from error
    except aiormq.DeliveryError as error:
        if isinstance(error, PublishError):
            raise TopologyMissing(f"no queue takes messages from exchange {exchange!r}") from error
        raise explain(error) from error
    except BaseException as error:
        if not is_lost(error):
            raise
        session.fail(error)
        raise explain(error) from error
