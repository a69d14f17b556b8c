"""A gateway's process: it listens, answers until SIGTERM, finishes what has arrived, and ends."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import structlog
import uvicorn
from starlette.types import ASGIApp
from structlog.typing import FilteringBoundLogger
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from bso.domain.errors import Misconfigured, Retryable
from bso.domain.savings import Tariff
from bso.service.tariff import read_tariff
from bso_gateway.app import dashboard_app, gateway_app
from bso_gateway.http import IS_TOO_MANY
from bso_gateway.optimizer import Optimizer, optimizer_of
from bso_gateway.pages.door import KEY
from bso_gateway.pages.paths import PREFIX as PAGES
from bso_gateway.settings import GatewaySettings
from bso_workers.errors import CannotListen
from bso_workers.lifecycle import ExitCode, StopSignal, collect_garbage_seldom, fastest_loop
from bso_workers.logs import configure_logs

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_BACKLOG = 2048
_MOST_HEAD_BYTES = 65_536
_MOST_WAITING = 65_536  # bytes
_MOST_PIPELINED = 16  # requests of one connection that wait for the answer to another one
_VERSIONS = ("1.0", "1.1")


class App(Protocol):
    """Makes the application that a process serves."""

    def __call__(
        self,
        settings: GatewaySettings,
        optimizer: Optimizer,
        *,
        is_draining: asyncio.Event,
        show_key: Callable[[str], None],
        tariff: Tariff,
    ) -> ASGIApp:
        """The application over an optimizer; ``show_key`` is called with each key that opens its pages.

        ``tariff`` is what savings are valued at.
        """
        ...


def run_gateway(settings: GatewaySettings) -> ExitCode:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the process at once."""
    return _run(settings, gateway_app, _log_address)


def run_dashboard(settings: GatewaySettings, *, show: Callable[[str], None]) -> ExitCode:
    """The same for the pages alone; ``show`` is called with each address that opens them in one browser."""
    return _run(settings, dashboard_app, show)


def _run(settings: GatewaySettings, app: App, show: Callable[[str], None]) -> ExitCode:
    configure_logs(level=settings.log_level, style=settings.log_format, stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(_until_signalled(settings, app, show))


def _log_address(address: str) -> None:
    _log.info("pages for people: this address opens them in one browser", action="pages", url=address)


async def _until_signalled(settings: GatewaySettings, app: App, show: Callable[[str], None]) -> ExitCode:
    with StopSignal() as stop:
        try:
            tariff = read_tariff(os.environ)
            with _listener(settings) as listener:
                optimizer = optimizer_of(settings.url, operator_url=settings.operator_url)
                is_draining = asyncio.Event()
                opening = f"{_address(settings, listener)}{PAGES}?{KEY}="
                await optimizer.start()
                try:
                    made = app(
                        settings,
                        optimizer,
                        is_draining=is_draining,
                        show_key=lambda key: show(f"{opening}{key}"),
                        tariff=tariff,
                    )
                    collect_garbage_seldom()
                    return await _serve(settings, made, listener, stop, is_draining)
                finally:
                    await optimizer.close()
        except Misconfigured as error:
            _log.error("cannot start like this", action="misconfigured", reason=str(error))
            return ExitCode.MISCONFIGURED
        except Retryable as error:
            _log.error("cannot start now", action="crashed", reason=str(error))
            return ExitCode.CRASHED


async def _serve(
    settings: GatewaySettings, app: ASGIApp, listener: socket.socket, stop: StopSignal, is_draining: asyncio.Event
) -> ExitCode:
    server = _Server(_config(settings, app))
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="gateway")
    stopping = asyncio.create_task(stop.wait(), name="signal")
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            _log.info("draining", action="draining", signal=stopping.result())
        is_draining.set()
        server.should_exit = True
        await serving
    finally:
        stopping.cancel()
    exit_code = ExitCode.DRAINED if stopping.done() and not stopping.cancelled() else ExitCode.CRASHED
    _log.info("gateway ended", action="ended", exit_code=int(exit_code))
    return exit_code


class _Server(uvicorn.Server):
    """Says when it listens; the signals are handled by this process' own StopSignal."""

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = sockets[0].getsockname()[:2] if sockets else (self.config.host, self.config.port)
        scheme = "https" if self.config.is_ssl else "http"
        _log.info("gateway started", action="started", url=f"{scheme}://{_shown_host(host)}:{port}", port=port)

    @override
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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


class _Protocol(HttpToolsProtocol):
    """HTTP by httptools, with bounds for what is no body: its bytes, and how long the head of a request may take.

    httptools bounds neither heads nor trailers; uvicorn has a deadline only for connections that rest between two
    requests, and any byte ends it. Nor do they bound how many requests wait on one connection. What can be read in two
    ways is refused (RFC 9112, sections 3.2 and 6.1).
    """

    head_timeout_s: ClassVar[float]
    most_connections: ClassVar[int]
    at_rest: ClassVar[dict[_Protocol, None]]
    """The connections that are in no request, or have not sent its head yet; the first one is so for longest."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._other_bytes = 0  # that have arrived since the last part of a body, or since a request began
        self._deadline: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(_OneWrite(transport))  # type: ignore[arg-type]  # it passes on all else
        self._await_head()

    @override
    def data_received(self, data: bytes) -> None:
        self._other_bytes += len(data)
        super().data_received(data)
        if self._other_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head, the trailers or a chunk's head of the request are too large.")
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
        _require_one_meaning(self.url, self.headers, self.parser.get_http_version())
        if len(self.connections) > self.most_connections and not self._make_room():
            self.scope[IS_TOO_MANY] = True  # type: ignore[literal-required]  # a key of ours
        super().on_headers_complete()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None:
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
    """What has arrived is no request that can be answered: uvicorn answers with 400, and closes the connection."""


def _require_one_meaning(target: bytes, headers: Sequence[tuple[bytes, bytes]], version: str) -> None:
    """Raise _Unreadable for what a proxy in front may understand in another way than this gateway."""
    found = Counter(name for name, _ in headers)
    named = dict(headers)
    host = named.get(b"host", b"")
    if version not in _VERSIONS:
        raise _Unreadable(f"HTTP {version}")
    if found[b"host"] > 1 or found[b"authorization"] > 1 or (version == "1.1" and not found[b"host"]):
        raise _Unreadable("a header that must be there once")
    if any(name == b"transfer-encoding" and value.strip().lower() != b"chunked" for name, value in headers):
        raise _Unreadable("an encoding other than chunked")
    is_of_host = target.startswith((b"http://%b/" % host, b"https://%b/" % host))
    if not target.startswith(b"/") and not is_of_host:
        raise _Unreadable("a target of another host")


def _config(settings: GatewaySettings, app: ASGIApp) -> uvicorn.Config:
    class Protocol(_Protocol):
        at_rest: ClassVar[dict[_Protocol, None]] = {}
        head_timeout_s = settings.head_timeout_s
        most_connections = settings.max_connections

    return uvicorn.Config(
        app,
        http=Protocol,
        timeout_keep_alive=settings.keep_alive_s,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=sorted(settings.trusted_proxies),
        timeout_graceful_shutdown=max(1, round(settings.drain_timeout_s)),
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )


@contextmanager
def _listener(settings: GatewaySettings) -> Iterator[socket.socket]:
    """The socket that requests arrive at. Raises CannotListen."""
    if settings.tls_certificate is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                settings.tls_certificate, settings.tls_key
            )
        except (OSError, ssl.SSLError) as error:
            raise CannotListen(
                f"{settings.tls_certificate} and {settings.tls_key} are no certificate with its key: {error}"
            ) from error
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise CannotListen(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; set BSO_GATEWAY_HOST and "
            "BSO_GATEWAY_PORT (0 takes a free port)"
        ) from error
    with listener:
        yield listener


def _address(settings: GatewaySettings, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "http" if settings.tls_certificate is None else "https"
    return f"{scheme}://{_shown_host(host)}:{port}"


def _shown_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
