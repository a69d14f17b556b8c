"""One connection to RabbitMQ, opened with a deadline and with errors that say what to do."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass, field
from urllib.parse import unquote

import aiormq
from aiormq.exceptions import (
    AMQPConnectionError,
    AuthenticationError,
    ChannelAccessRefused,
    ChannelNotFoundEntity,
    DeliveryError,
    InvalidFrameError,
    ProbableAuthenticationError,
    PublishError,
)
from typing_extensions import override
from yarl import URL

from bso.domain.errors import BsoError
from bso_broker.coalescing import Connection
from bso_broker.errors import (
    BrokerUnreachable,
    ConnectionLost,
    InvalidBrokerUrl,
    LoginRefused,
    NotPermitted,
    PublishFailed,
    TlsFailed,
    TopologyMissing,
    VirtualHostRefused,
)

# Python prints a library's warnings on stderr where logging is not set up: a training script should not see each retry.
logging.getLogger("aiormq").addHandler(logging.NullHandler())

_EXAMPLE = "amqp://user:password@host:5672/virtual-host"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """Where the broker is and how patient to be with it."""

    url: str = field(repr=False)  # holds the password
    connect_timeout_s: float = 10.0
    set_up_timeout_s: float = 30.0  # for the declarations on a fresh connection
    confirm_timeout_s: float = 20.0  # a broker that confirms nothing for so long is taken for frozen
    resend_after_s: float = 10.0  # without a reply a command goes out again, in case the reply was lost
    declare_every_s: float = 30.0  # how soon a worker creates again what somebody has deleted
    heartbeat_s: int = 30

    def __post_init__(self) -> None:
        """Refuse an address that cannot be one of a broker."""
        try:
            url = URL(self.url)
        except ValueError as error:
            raise InvalidBrokerUrl(f"not a broker URL ({error}); expected {_EXAMPLE}") from error
        if url.scheme not in ("amqp", "amqps"):
            raise InvalidBrokerUrl(f"a broker URL begins with amqp:// or amqps://, got {url.scheme!r}: {_EXAMPLE}")
        if not url.host:
            raise InvalidBrokerUrl(f"the broker URL names no host: {_EXAMPLE}")

    @property
    def login(self) -> str:
        """The user name; RabbitMQ checks it against the user_id of every message."""
        return URL(self.url).user or "guest"

    @override
    def __str__(self) -> str:
        """Host, port and virtual host, without the password."""
        url = URL(self.url)
        return f"{url.host}:{url.port or (5671 if url.scheme == 'amqps' else 5672)}{unquote(url.path) or '/'}"

    def named(self, name: str) -> URL:
        """The URL with heartbeat and a name for the management page, unless it already sets them."""
        url = URL(self.url)
        return url.update_query({"heartbeat": str(self.heartbeat_s), "name": name} | dict(url.query))


async def connect(address: BrokerAddress, *, name: str) -> Connection:
    """Open a connection, or raise an error of ours that says what to do about it."""
    try:
        async with asyncio.timeout(address.connect_timeout_s):
            connection = Connection(address.named(name))
            await connection.connect()
            return connection
    except TimeoutError as error:
        raise BrokerUnreachable(
            f"the broker at {address} did not answer within {address.connect_timeout_s:g} s; is it running, "
            "and is this its AMQP port (5672, with TLS 5671)?"
        ) from error
    except (aiormq.AMQPError, OSError, ValueError) as error:
        raise _explain_connecting(error, address) from error


def _explain_connecting(error: Exception, address: BrokerAddress) -> BsoError:
    if _is_tls(error):
        return TlsFailed(f"TLS with the broker at {address} failed: {error}; amqps:// needs its TLS port (5671)")
    if _is_unresolved(error):
        return BrokerUnreachable(
            f"the host name {URL(address.url).host!r} of the broker at {address} cannot be resolved ({error}): check "
            "its spelling, and whether this machine's DNS knows it"
        )
    match error:
        case ProbableAuthenticationError():
            return LoginRefused(
                f"the broker at {address} refuses user {address.login!r} with the password given: expected a user name "
                f"and password that it knows, in {_EXAMPLE}; correct them there (other characters than letters and "
                "digits percent-encoded), or ask the broker's administrator for a login"
            )
        case AuthenticationError():
            return LoginRefused(f"the broker at {address} does not offer this way to log in: {error}")
        case InvalidFrameError() if "Connection.Close" in str(error):
            return VirtualHostRefused(
                f"user {address.login!r} may not access the virtual host of {address}: create it "
                "(rabbitmqctl add_vhost), or give the user permissions on it (rabbitmqctl set_permissions)"
            )
        case ValueError():
            return InvalidBrokerUrl(f"not a broker URL ({error}); expected {_EXAMPLE}")
        case FileNotFoundError():
            files = [f"{k}={v}" for k, v in URL(address.url).query.items() if k in ("cafile", "certfile", "keyfile")]
            return TlsFailed(f"a certificate file named in the broker URL does not exist: {', '.join(files)}")
        case _:
            return BrokerUnreachable(f"cannot reach the broker at {address}: {error}; is it running?")


def _is_tls(error: BaseException) -> bool:
    return isinstance(error, ssl.SSLError) or isinstance(error.__cause__, ssl.SSLError)


def _is_unresolved(error: BaseException) -> bool:
    return isinstance(error, socket.gaierror) or isinstance(error.__cause__, socket.gaierror)


def explain(error: BaseException | None) -> BsoError:
    """Turn what aiormq raises on an open connection into an error of ours."""
    match error:
        case BsoError():
            return error
        case PublishError():
            return TopologyMissing(f"no queue is bound for this message: {error}")
        case DeliveryError():
            return PublishFailed("the broker refused the message: the queue is full or its leader unavailable")
        case ChannelAccessRefused():
            return NotPermitted(f"the broker denies it: {error}; grant the permission with rabbitmqctl set_permissions")
        case ChannelNotFoundEntity():
            return TopologyMissing(f"{error}: a worker declares it when it starts")
        case _:
            return ConnectionLost(f"the connection to the broker broke: {error!r}")


def is_lost(error: BaseException) -> bool:
    """Whether this error of aiormq means that the connection or channel is gone.

    A CancelledError counts when nobody cancelled the current task: aiormq ends what waits on a dead connection so.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or not task.cancelling()
    return isinstance(error, (aiormq.AMQPError, AMQPConnectionError, RuntimeError, OSError))
