"""HTTP connections, below uvicorn: what may arrive on them, for how long, and how much of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar
from urllib.parse import unquote_to_bytes

import httptools
import structlog
from structlog.typing import FilteringBoundLogger
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from bso_gateway.http import IS_TOO_MANY

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_MOST_HEAD_BYTES = 65_536
_MOST_WAITING = 65_536  # bytes
_MOST_PIPELINED = 16  # requests of one connection that wait for the answer to another one
_MOST_OF_A_REASON = 200
_TLS = b"\x16\x03"  # how a TLS connection begins (RFC 8446, section 5.1)
_HTTP_2 = b"PRI * HTTP/2.0"  # how an HTTP/2 connection begins (RFC 9113, section 3.4)
_VERSIONS, _SCHEMES = ("1.0", "1.1"), (b"http", b"https")


class _OneWrite:
    """A transport that sends what is written in one turn of the event loop at once: uvicorn writes a head and a body.

    A write to a socket is what costs most of all that a small answer needs.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > _MOST_WAITING:  # so that a transport that is full can say so
            self._flush()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._waiting and not self._transport.is_closing():
            self._transport.write(b"".join(self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0


class HttpProtocol(HttpToolsProtocol):
    """HTTP by httptools, with bounds for what is no body: its bytes, and how long the head of a request may take.

    httptools bounds neither heads nor trailers; uvicorn has a deadline only for connections that rest between two
    requests, and any byte ends it. Nor do they bound how many requests wait on one connection. What can be read in two
    ways is refused (RFC 9112, sections 3.2 and 6.1), after the answers to the requests before it (section 9.3.2).
    """

    head_timeout_s: ClassVar[float]
    most_connections: ClassVar[int]
    at_rest: ClassVar[dict[HttpProtocol, None]]
    """The connections that are in no request, or have not sent its head yet; the first one is so for longest."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._other_bytes = 0  # that have arrived since the last part of a body, or since a request began
        self._deadline: asyncio.TimerHandle | None = None
        self._refusal: str | None = None  # of what has arrived last; nothing that comes after it is read

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(_OneWrite(transport))  # type: ignore[arg-type]  # it passes on all else
        self._await_head()

    @override
    def data_received(self, data: bytes) -> None:
        if self._refusal is not None or self.parser is None:
            return
        self._other_bytes += len(data)
        self._end_rest()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # nothing else is spoken here: the request is answered as any other
        except httptools.HttpParserError as error:
            self._refuse(_reason_of(error, data))
            return
        if self._other_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
            words = "the head, the trailers or a chunk's head of the request are too large"
            self._refuse(f"{words}, at most {_MOST_HEAD_BYTES} bytes are read")
            return
        cycle: RequestResponseCycle | None = self.cycle
        is_answered = cycle is None or cycle.response_complete
        if is_answered and self._deadline is None and self.timeout_keep_alive_task is None:
            self._await_head()  # what has arrived belongs to no request, or to one that is answered already

    @override
    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MOST_PIPELINED:
            raise _Unreadable("too many requests wait on this connection")
        self._other_bytes = 0
        if self._deadline is None:
            self._await_head()
        super().on_message_begin()

    @override
    def on_headers_complete(self) -> None:
        self._other_bytes = 0
        self._forget_deadline()
        assert self.parser is not None  # until the connection is lost
        if len(self.url) >= _MOST_HEAD_BYTES:
            raise _Unreadable(f"its target is too long, at most {_MOST_HEAD_BYTES} bytes are read")
        _require_one_meaning(self.url, self.headers, self.parser.get_http_version())
        if len(self.connections) > self.most_connections and not self._make_room():
            self.scope.setdefault("state", {})[IS_TOO_MANY] = True
        super().on_headers_complete()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._refusal is not None and self.timeout_keep_alive_task is not None:  # all before it are answered
            self._end_rest()
            self._send_refusal(self._refusal)
        elif self.timeout_keep_alive_task is not None:
            self.at_rest[self] = None

    @override
    def on_body(self, body: bytes) -> None:
        self._other_bytes = 0
        super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._other_bytes = 0
        super().on_message_complete()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    def _refuse(self, reason: str) -> None:
        """Read no further, and say why, once what has arrived before is answered."""
        self._refusal = reason
        self._forget_deadline()
        client = self.client[0] if self.client else None
        _log.info("a request was not readable", action="unreadable_request", client=client, reason=reason)
        cycle: RequestResponseCycle | None = self.cycle
        is_whole = cycle is not None and not cycle.response_complete and not cycle.more_body
        if not (self.pipeline or is_whole):  # nothing before it waits for its answer
            self._send_refusal(reason)
        elif not is_whole:
            self.pipeline.popleft()  # the last one, whose end cannot be read

    def _send_refusal(self, reason: str) -> None:
        self.send_400_response(f"The request cannot be read: {reason}.")

    def _end_rest(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    def _make_room(self) -> bool:
        """End the connection that has been at rest for longest; False: there is none."""
        longest = next(iter(self.at_rest), None)
        if longest is None:
            return False
        del self.at_rest[longest]
        longest.transport.abort()
        return True

    def _await_head(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(self.head_timeout_s, self.transport.abort)
        self.at_rest.setdefault(self)

    def _forget_deadline(self) -> None:
        self.at_rest.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Unreadable(Exception):
    """What has arrived is no request that can be answered: the answer is 400, and the end of the connection."""


def _reason_of(error: httptools.HttpParserError, data: bytes) -> str:
    """Why what has arrived last is no request, in ASCII."""
    if data.startswith(_TLS):
        return "it is TLS, and this port speaks HTTP without it"
    if data.startswith(_HTTP_2):
        return "it is HTTP/2, and this port speaks HTTP/1.1"
    if isinstance(error.__context__, _Unreadable):
        return str(error.__context__)
    if isinstance(error.__context__, httptools.HttpParserInvalidURLError):
        return "its target is no URL"
    return str(error).encode("ascii", "replace").decode().strip()[:_MOST_OF_A_REASON] or "it is no HTTP"


def _require_one_meaning(target: bytes, headers: Sequence[tuple[bytes, bytes]], version: str) -> None:
    """Raise _Unreadable for what a proxy in front may understand in another way than this gateway."""
    hosts, logins = [], 0
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"authorization":
            logins += 1
        elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise _Unreadable("its Transfer-Encoding is not chunked")
    if version not in _VERSIONS:
        raise _Unreadable(f"it is of HTTP {version}, expected 1.1 or 1.0")
    if version == "1.1" and not hosts:
        raise _Unreadable("it has no header Host, which HTTP 1.1 needs")
    _require_once("Host", len(hosts))
    _require_once("Authorization", logins)
    if not target.startswith(b"/"):
        _require_own_url(target, hosts)
    if b"%" in target:
        _require_text(target)


def _require_once(name: str, count: int) -> None:
    if count > 1:
        raise _Unreadable(f"it has {count} headers {name}, expected one")


def _require_own_url(target: bytes, hosts: Sequence[bytes]) -> None:
    if not target.startswith(tuple(b"%b://" % scheme for scheme in _SCHEMES)):
        raise _Unreadable("its target is no path, which begins with /")
    if not target.startswith(tuple(b"%b://%b/" % (scheme, hosts[0]) for scheme in _SCHEMES if hosts)):
        raise _Unreadable("its target is of another host than Host names")


def _require_text(target: bytes) -> None:
    try:
        unquote_to_bytes(target).decode()
    except UnicodeDecodeError:
        raise _Unreadable("its target holds bytes that are no UTF-8") from None
