"""Health and metrics over HTTP: /livez, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from bso.credentials import without_passwords
from bso_workers.errors import CannotListen
from bso_workers.metrics import Metrics
from bso_workers.readiness import WorkerReadiness


class HealthPages:
    """What an orchestrator asks. Alive never depends on broker or database; a stuck event loop does not answer."""

    def __init__(
        self, *, readiness: WorkerReadiness, metrics: Metrics, busy_for_s: Callable[[], float], stuck_after_s: float
    ) -> None:
        self._readiness = readiness
        self._metrics = metrics
        self._busy_for_s = busy_for_s
        self._stuck_after_s = stuck_after_s

    async def livez(self, _request: web.Request) -> web.Response:
        """200, or 500 when one batch has been under way for far too long: restart this process."""
        busy_for_s = self._busy_for_s()
        is_alive = busy_for_s < self._stuck_after_s
        reasons = {} if is_alive else {"worker": f"one batch has been under way for {busy_for_s:.0f} s"}
        return _page("alive", is_alive, reasons, status=500)

    async def readyz(self, _request: web.Request) -> web.Response:
        """200, or 503 with the reasons why commands are not being taken."""
        return _page("ready", self._readiness.is_ready, self._readiness.reasons(), status=503)

    async def metrics(self, _request: web.Request) -> web.Response:
        """Everything counted, in Prometheus' text format."""
        self._metrics.ready.set(self._readiness.is_ready)
        return web.Response(body=generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


@asynccontextmanager
async def serve_health(pages: HealthPages, *, host: str, port: int) -> AsyncIterator[int]:
    """Serve the pages inside this block; gives the port. Raises CannotListen."""
    app = web.Application()
    app.add_routes(
        [
            web.get("/livez", pages.livez),
            web.get("/readyz", pages.readyz),
            web.get("/metrics", pages.metrics),
        ]
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise CannotListen(
                f"health pages cannot be served on {host}:{port}: {error.strerror or error}; set BSO_HEALTH_HOST and "
                "BSO_HEALTH_PORT (0 takes a free port)"
            ) from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _page(name: str, is_fine: bool, reasons: Mapping[str, str], *, status: int) -> web.Response:  # noqa: FBT001
    shown = {part: without_passwords(reason) for part, reason in reasons.items()}
    return web.json_response({name: is_fine, "reasons": shown}, status=200 if is_fine else status)
