"""A gateway's process: it listens, answers until SIGTERM, finishes what has arrived, and ends."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Protocol

import structlog
import uvicorn
from starlette.types import ASGIApp
from structlog.typing import FilteringBoundLogger
from typing_extensions import override

from bso.domain.errors import Misconfigured, Retryable
from bso.domain.savings import Tariff
from bso.service.tariff import read_tariff
from bso_gateway.app import dashboard_app, gateway_app
from bso_gateway.connections import HttpProtocol
from bso_gateway.optimizer import Optimizer, optimizer_of
from bso_gateway.pages.door import KEY
from bso_gateway.pages.paths import PREFIX as PAGES
from bso_gateway.settings import PREFIX, GatewaySettings
from bso_workers.errors import CannotListen
from bso_workers.lifecycle import ExitCode, StopSignal, collect_garbage_seldom, fastest_loop
from bso_workers.logs import configure_logs, warn_of_misspelt
from bso_workers.settings import variables_of

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_BACKLOG = 2048
_MOST_OTHER_FILES = 256  # that a gateway opens: connections to a broker, a database, logs


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
    _allow_open_files(settings.max_connections + _MOST_OTHER_FILES)
    configure_logs(level=settings.log_level, style=settings.log_format, stream=sys.stderr)
    warn_of_misspelt(os.environ, ("BSO_URL", *variables_of(GatewaySettings, prefix=PREFIX)))
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(_until_signalled(settings, app, show))


def _allow_open_files(count: int) -> None:
    """Raise the limit of open files, as far as allowed: connections above it are reset, those of probes, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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


def _config(settings: GatewaySettings, app: ASGIApp) -> uvicorn.Config:
    class OfThisServer(HttpProtocol):
        at_rest: ClassVar[dict[HttpProtocol, None]] = {}
        head_timeout_s = settings.head_timeout_s
        most_connections = settings.max_connections

    return uvicorn.Config(
        app,
        http=OfThisServer,
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
