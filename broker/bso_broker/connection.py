"""Connections to RabbitMQ by aio-pika, with deadlines, pauses between attempts, and errors that say what to do."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import unquote

import aiormq
from aiormq.exceptions import (
    AuthenticationError,
    ChannelAccessRefused,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    InvalidFrameError,
    ProbableAuthenticationError,
    PublishError,
)
from typing_extensions import override
from yarl import URL

from bso.credentials import hide_passwords_of, problem_of, renewed
from bso.domain.errors import BsoError
from bso.schema.envelope import MAX_ANSWER_BYTES
from bso.tls import TlsFailed, TlsOptions, is_loopback, why_tls_failed
from bso_broker.errors import (
    BrokerUnreachable,
    ConnectionLost,
    InvalidBrokerUrl,
    LoginRefused,
    NotPermitted,
    PublishFailed,
    TopologyMissing,
    VirtualHostRefused,
)
from bso_broker.messages import check_size
from bso_broker.pauses import FIRST_PAUSE_S, Pauses
from bso_broker.topology import Topology, topology
from bso_broker.underlay import Outgoing, RobustConnection, underlay_of
from bso_broker.url_options import PASSED_ON, check_options, command_queue_type, logs_in_by_certificate, tls_of

_SAID_ONCE = (  # what the libraries log at every attempt, with a traceback, and this package once and in words
    "error when creating transport",
    "Cancelling cause reader exited abnormally",
    "Connection attempt to",
    "Connection to %s closed. Reconnecting",
)


def _is_news(record: logging.LogRecord) -> bool:
    is_news = not str(record.msg).startswith(_SAID_ONCE)
    return is_news or logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


# Python prints a library's warnings on stderr where logging is not set up: a training script should not see each retry.
for _library in ("aio_pika", "aiormq"):
    logging.getLogger(_library).addHandler(logging.NullHandler())
for _logger in ("aio_pika.robust_connection", "aiormq.connection"):
    logging.getLogger(_logger).addFilter(_is_news)

_CLOSE_TIMEOUT_S = 1.0
_EXAMPLE = "amqp://user:password@host:5672/virtual-host"
_IS_IT_THERE = "is it running, and is this its AMQP port (5672, with TLS 5671)?"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """Where the broker is and how patient to be with it."""

    url: str = field(repr=False)  # holds the password
    connect_timeout_s: float = 10.0
    set_up_timeout_s: float = 30.0  # for the declarations on a fresh connection
    confirm_timeout_s: float = 20.0  # a broker that confirms nothing for so long is taken for frozen
    resend_after_s: float = 10.0  # without a reply a command goes out again, in case the reply was lost
    declare_every_s: float = 10.0  # how soon a worker creates again what somebody has deleted
    heartbeat_s: int = 30
    spread_s: float = 0.0  # after a loss the first attempt comes at a random moment within it: thousands may lose it
    longest_pause_s: float = 5.0  # between two attempts

    def __post_init__(self) -> None:
        """Refuse an address that cannot be one of a broker."""
        hide_passwords_of(self.url)
        if problem := problem_of(self.url):
            raise InvalidBrokerUrl(f"the broker URL cannot be used: {problem}; expected {_EXAMPLE}")
        try:
            url = URL(self.url)
        except ValueError:  # its words would quote the address
            raise InvalidBrokerUrl(f"not a broker URL; expected {_EXAMPLE}") from None
        if url.scheme not in ("amqp", "amqps"):
            raise InvalidBrokerUrl(f"a broker URL begins with amqp:// or amqps://, got {url.scheme!r}: {_EXAMPLE}")
        if not url.host:
            raise InvalidBrokerUrl(f"the broker URL names no host: {_EXAMPLE}")
        check_options(url)

    @property
    def login(self) -> str:
        """The user name; RabbitMQ checks it against the user_id of every message."""
        return login_of(self.url)

    @override
    def __str__(self) -> str:
        """Host, port and virtual host, without the password."""
        url = URL(self.url)
        return f"{url.host}:{url.port or (5671 if url.scheme == 'amqps' else 5672)}{unquote(url.path) or '/'}"

    @property
    def tls(self) -> TlsOptions:
        """How connections are encrypted."""
        return tls_of(URL(self.url))

    @property
    def logs_in_by_certificate(self) -> bool:
        """Whether the broker reads the login from the certificate, in place of a password."""
        return logs_in_by_certificate(URL(self.url))

    @property
    def topology(self) -> Topology:
        """What has to exist there."""
        return topology(command_queue_type(URL(self.url)))

    @property
    def is_exposed(self) -> bool:
        """Whether the network between this machine and the broker's can read everything."""
        return not self.tls.is_on and not is_loopback(URL(self.url).host)

    def named(self, name: str) -> URL:
        """The URL for aiormq, with heartbeat and a name for the management page, unless it already sets them.

        Its password is the one that the file of the address holds now.
        """
        url = URL(renewed(self.url))
        given = {option: value for option, value in url.query.items() if option in PASSED_ON}
        return url.with_query({"heartbeat": str(self.heartbeat_s), "name": name} | given)


def login_of(url: str) -> str:
    """The user name in the address of a broker."""
    return URL(url).user or "guest"


def vhost_of(url: str) -> str:
    """The virtual host in the address of a broker."""
    return URL(url).path.removeprefix("/") or "/"


class Connection(RobustConnection):
    """A connection that aio-pika makes again whenever it breaks, after growing pauses, until it is closed.

    Nothing here has a deadline, and aio-pika may hang: a caller that gives up closes it and makes another.
    """

    def __init__(self, address: BrokerAddress, *, name: str, largest_body: int = MAX_ANSWER_BYTES) -> None:
        super().__init__(address.named(name), tls=address.tls, largest_body=largest_body)
        self._address, self._name = address, name
        self._pauses = Pauses(spread_s=address.spread_s, longest_s=address.longest_pause_s)
        self.set_pause(FIRST_PAUSE_S)
        self.close_callbacks.add(self._broken)
        self._born_s = 0.0
        self._is_over = asyncio.Event()  # set unless ``opened`` has returned, and the connection not broken since
        self._is_over.set()
        self._failure: asyncio.Future[BaseException | None] = self.loop.create_future()
        self._closed: asyncio.Future[None] = self.loop.create_future()

    async def opened(self) -> Self:
        """Wait until it is open; raises an error of ours when the attempt under way, or the next, fails."""
        await self._is_over.wait()
        self._failure = self.loop.create_future()
        connecting = asyncio.create_task(self.connect(timeout=self._address.connect_timeout_s))
        try:
            either: list[asyncio.Future[Any]] = [connecting, self._failure]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            connecting.cancel()
        if self._failure.done():
            failure = self._failure.result()
            raise _explain_connecting(failure, self._address) from failure
        await connecting  # it is done: nothing happens between here and the end
        self._born_s = self.loop.time()
        self._is_over.clear()
        return self

    def _broken(self, _: object, error: BaseException | None) -> Awaitable[object] | None:
        """aio-pika calls this after a failed attempt, then it pauses; and after a loss, then it awaits the result."""
        was_open = not self._is_over.is_set()
        pause_s = self._pauses.after(self.loop.time() - self._born_s if was_open else 0.0)
        self.set_pause(pause_s)
        self.set_url(self._address.named(self._name))
        self._is_over.set()
        if was_open:
            return asyncio.wait([self._closed], timeout=pause_s)
        if not self._failure.done():
            self._failure.set_result(error)
        return None

    async def renew(self) -> None:
        """Give up what ``opened`` has opened, if it is not broken already: aio-pika connects again."""
        if not self._is_over.is_set():
            await self._close_in_time(underlay_of(self).close(_closed_here()))

    @override
    async def close(self, exc: object = None) -> None:
        """Disconnect, never raising, also where the broker is frozen."""
        self.close_callbacks.discard(self._broken)
        if not self._closed.done():
            self._closed.set_result(None)
        await self._close_in_time(super().close(_closed_here()))
        self.sockets.abort()  # aio-pika does not close a connection over which it hung

    async def _close_in_time(self, closing: Coroutine[object, object, object]) -> None:
        task = asyncio.ensure_future(closing)
        _, late = await asyncio.wait([task], timeout=_CLOSE_TIMEOUT_S)
        if late:
            self.sockets.abort()
            _, late = await asyncio.wait([task], timeout=_CLOSE_TIMEOUT_S)
        if late:
            task.cancel()
        elif not task.cancelled():
            task.exception()  # nobody has to know


async def connect(address: BrokerAddress, *, name: str, largest_body: int = MAX_ANSWER_BYTES) -> Connection:
    """Open a connection, or raise an error of ours that says what to do about it."""
    connection = Connection(address, name=name, largest_body=largest_body)
    try:
        async with asyncio.timeout(address.connect_timeout_s):
            return await connection.opened()
    except BaseException as error:
        await connection.close()
        if isinstance(error, TimeoutError):
            raise _explain_connecting(error, address) from error
        raise


def _closed_here() -> ConnectionLost:
    return ConnectionLost("closed by this side")  # aiormq's default would look like a cancellation


async def publish(channel: aiormq.Channel, message: Outgoing, *, exchange: str, timeout_s: float) -> None:
    """Publish on a channel with confirms, and wait until the broker has put the message into a queue.

    TopologyMissing: there is none. PublishFailed: the broker refuses it. ConnectionLost: it may have taken it, or not;
    a broker that does not confirm in time is taken for frozen.
    """
    check_size(message.body)
    try:
        async with asyncio.timeout(timeout_s):
            await channel.basic_publish(
                message.body,
                exchange=exchange,
                routing_key=message.routing_key,
                properties=message.properties,
                mandatory=True,
                wait=False,
            )
    except TimeoutError as error:
        raise ConnectionLost(f"no confirmation within {timeout_s:g} s") from error
    except PublishError as error:
        raise TopologyMissing(f"no queue takes messages from exchange {exchange!r}") from error
    except BaseException as error:
        if not is_lost(error):
            raise
        raise explain(error) from error


def _explain_connecting(error: BaseException | None, address: BrokerAddress) -> BsoError:
    if isinstance(error, TimeoutError):
        return BrokerUnreachable(
            f"the broker at {address} did not answer within {address.connect_timeout_s:g} s; {_IS_IT_THERE}"
        )
    if (why := why_tls_failed(error)) is not None:
        return TlsFailed(f"TLS with the broker at {address} failed: {why}")
    if _is_of(error, socket.gaierror):
        return BrokerUnreachable(
            f"the host name {URL(address.url).host!r} of the broker at {address} cannot be resolved ({error}): check "
            "its spelling, and whether this machine's DNS knows it"
        )
    match error:
        case ProbableAuthenticationError() if address.logs_in_by_certificate:
            return LoginRefused(
                f"the broker at {address} knows no login for the certificate given (tls_cert): its administrator adds "
                f"the user {address.login!r}, or the address names another certificate"
            )
        case ProbableAuthenticationError():
            return LoginRefused(
                f"the broker at {address} refuses user {address.login!r} with the password given: expected a user name "
                f"and password that it knows, in {_EXAMPLE}; correct them there (other characters than letters and "
                "digits percent-encoded), or ask the broker's administrator for a login"
            )
        case AuthenticationError():
            return LoginRefused(
                f"the broker at {address} does not offer to log in by {_way_in(address)}: its administrator can offer "
                "it (auth_mechanisms); with auth=external in the address it is by certificate, without by password"
            )
        case InvalidFrameError() if "Connection.Close" in str(error):
            return VirtualHostRefused(
                f"user {address.login!r} may not access the virtual host of {address}: create it "
                "(rabbitmqctl add_vhost), or give the user permissions on it (rabbitmqctl set_permissions)"
            )
        case _ if address.tls.is_on and _is_of(error, ConnectionResetError, asyncio.IncompleteReadError):
            return BrokerUnreachable(
                f"the broker at {address} ends the connection: {error}; is it stopping, or does it ask for a "
                "certificate (tls_cert=FILE), and not accept the one that it got?"
            )
        case ValueError():
            return InvalidBrokerUrl(f"not a broker URL; expected {_EXAMPLE}")  # its words may quote the address
        case _:
            return BrokerUnreachable(f"cannot reach the broker at {address}: {error}; {_IS_IT_THERE}")


def _way_in(address: BrokerAddress) -> str:
    return "certificate (EXTERNAL)" if address.logs_in_by_certificate else "password (PLAIN)"


def _is_of(error: BaseException | None, *kinds: type[BaseException]) -> bool:
    return isinstance(error, kinds) or isinstance(getattr(error, "__cause__", None), kinds)


def explain(error: BaseException | None) -> BsoError:
    """Turn what aio-pika and aiormq raise on an open connection into an error of ours."""
    match error:
        case BsoError():
            return error
        case PublishError():
            return TopologyMissing(f"no queue is bound for this message: {error}")
        case DeliveryError():
            return PublishFailed("the broker refused the message: the queue is full or its leader unavailable")
        case ChannelAccessRefused():
            return NotPermitted(f"the broker denies it: {error}; {_remedy(str(error))}")
        case ChannelPreconditionFailed() if "user_id" in str(error):
            return NotPermitted(
                f"the broker denies it: {error}; the address has to name the login that the broker reads from the "
                "certificate"
            )
        case ChannelNotFoundEntity():
            return TopologyMissing(f"{error}: a worker declares it when it starts")
        case _:
            return ConnectionLost(f"the connection to the broker broke: {error!r}")


def _remedy(refusal: str) -> str:
    if "topic" in refusal:
        return (
            "bind only keys of jobs that the login may read (`bso events tail JOB`), or have an administrator of the "
            "broker permit others with rabbitmqctl set_topic_permissions"
        )
    return "an administrator of the broker can grant the permission with rabbitmqctl set_permissions"


def is_lost(error: BaseException) -> bool:
    """Whether this error of aio-pika or aiormq means that the connection or channel is gone.

    A CancelledError counts when nobody cancelled the current task: aiormq ends what waits on a dead connection so, or
    with a bare Exception. Where this side has closed a channel, what waits on it gets the ConnectionLost that it was
    closed with.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or not task.cancelling()
    return type(error) is Exception or isinstance(error, (aiormq.AMQPError, ConnectionLost, RuntimeError, OSError))


@contextmanager
def suppress_loss() -> Iterator[None]:
    """Suppress the error of a connection or channel that is gone; others are raised."""
    try:
        yield
    except BaseException as error:
        if not is_lost(error):
            raise
