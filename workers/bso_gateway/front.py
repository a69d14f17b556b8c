"""In front of all routes: who may reach them from where, the ids of requests, the access log, and what is counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Mapping
from functools import lru_cache, partial
from itertools import count
from secrets import token_hex
from urllib.parse import urlsplit

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from bso_gateway.access import Access
from bso_gateway.http import ASKED, BEARER, IS_TOO_MANY, RECHECK, UNTIL, HttpError
from bso_gateway.pages.paths import PREFIX as PAGES
from bso_gateway.problems import error_page
from bso_gateway.settings import LOOPBACK_NAMES
from bso_gateway.zeus_wire import is_zeus_path

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_JSON = "application/json"
_WITH_BODY = ("POST", "PUT", "PATCH")
_LATENCIES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LATER_S = 1.0
_OWN_IDS, _numbers = token_hex(8), count(1)  # of requests that bring no id: those of this process
_QUIET = ("/livez", "/readyz", "/metrics")


class GatewayMetrics:
    """All counters of one gateway, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "bso_gateway_requests",
            "Requests answered, by route and status.",
            ["route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "bso_gateway_seconds",
            "From the header of a request to the end of its answer, by route.",
            ["route"],
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        self._children: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def of(self, route: str, status: int) -> tuple[Counter, Histogram]:
        """What counts requests of a route that are answered with a status; looking it up costs more than counting."""
        found = self._children.get((route, status))
        if found is None:
            found = self._children[route, status] = self.requests.labels(route, status), self.seconds.labels(route)
        return found


class Front:
    """An ASGI application around the routes. ``names`` are those by which clients reach it, beside localhost.

    No page of another origin may use a browser to reach it: the Host header must be a known name, and the Origin
    header, where there is one, the same. Bodies are JSON and say so; those of Zeus' client, which is no browser, need
    not. With ``access`` a request needs a token, but for health and metrics. ``direct`` are routes that are asked most
    often, by method and path: the way through the framework costs more than all else.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        pages: ASGIApp,
        names: Container[str],
        metrics: GatewayMetrics,
        has_access_log: bool,
        access: Access | None,
        answer_timeout_s: float,
        direct: Mapping[tuple[str, str], ASGIApp],
    ) -> None:
        self._app = app
        self._pages = pages
        self._names = names
        self._metrics = metrics
        self._has_access_log = has_access_log
        self._access = access
        self._answer_timeout_s = answer_timeout_s
        self._direct = direct

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, log it, count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()
        # The first of several of a name, as the framework has it.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        request_id = _request_id(headers)
        status, is_stream = 500, False

        async def sent(message: Message) -> None:
            nonlocal status, is_stream
            if message["type"] == "http.response.start":
                status = message["status"]
                given = dict(message["headers"])
                is_stream = given.get(b"content-type", b"").startswith(b"text/event-stream")
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            refusal = self._refusal(scope, headers) or await self._identify(scope, headers)
            if refusal is None:
                asked = _as_get(scope)
                await self._app_for(asked)(asked, receive, sent)
                scope["route"] = asked.get("route")
            else:
                answer = error_page(scope["path"], refusal)
                answer.headers["Connection"] = "close"  # a body that comes with it is not read
                await answer(scope, receive, sent)
        finally:
            took_s = time.perf_counter() - began_s
            self._note(scope, status, took_s, request_id=request_id, is_stream=is_stream)

    def _app_for(self, scope: Scope) -> ASGIApp:
        if is_page(scope):
            return self._pages
        return self._direct.get((scope["method"], scope["path"]), self._app)

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> HttpError | None:
        if scope.get("state", {}).get(IS_TOO_MANY) and scope["path"] not in _QUIET:
            words = "this gateway serves no more connections at once (BSO_GATEWAY_MAX_CONNECTIONS)"
            return HttpError(503, words, kind="too_many_connections", retry_after_s=_LATER_S)
        host = headers.get("host", "")
        if scope["path"] not in _QUIET and not self._is_known(host):
            words = f"this gateway is not known as {host[:80]!r}: add that name to BSO_GATEWAY_NAMES if it should be"
            return HttpError(421, words, kind="unknown_host")
        origin = headers.get("origin")
        is_foreign = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        if is_foreign and is_page(scope) and scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate":
            is_foreign = False  # somebody follows a link to a page, which changes nothing
        if is_foreign or (origin is not None and not _is_own(origin, scope["scheme"], host)):
            words = f"a page of {origin[:80] if origin else 'another site'!r} may not use this gateway"
            return HttpError(403, words, kind="foreign_origin")
        if scope["method"] in _WITH_BODY and not is_page(scope):
            may_lack = is_zeus_path(scope["path"]) and origin is None
            return _wrong_content(headers.get("content-type"), headers.get("content-encoding"), may_lack=may_lack)
        return None

    async def _identify(self, scope: Scope, headers: Mapping[str, str]) -> HttpError | None:
        """Find out who sends a request, where that matters."""
        if self._access is None or scope["path"] in _QUIET or is_page(scope):
            return None
        scope[UNTIL] = asyncio.get_running_loop().time() + self._answer_timeout_s
        client = scope.get("client")
        shown = partial(
            self._access.bearer, headers.get("authorization"), client=client[0] if client else "an unknown address"
        )
        try:
            scope[BEARER] = await shown()
        except HttpError as error:
            return error
        scope[RECHECK] = shown
        return None

    def _is_known(self, host: str) -> bool:
        name = _name_in(host)
        return name in LOOPBACK_NAMES or name in self._names  # both in small letters

    def _note(self, scope: Scope, status: int, took_s: float, *, request_id: str, is_stream: bool) -> None:
        is_direct = (scope["method"], scope["path"]) in self._direct
        route = scope["path"] if is_direct else getattr(scope.get("route"), "path", "other")
        route = PAGES if is_page(scope) else route
        requests, seconds = self._metrics.of(route, status)
        requests.inc()
        if not is_stream:
            seconds.observe(took_s)
        if not self._has_access_log or (route in _QUIET and status < 400):
            return
        client = scope.get("client")
        _log.info(
            "request",
            action="request",
            method=scope["method"],
            path=scope["path"][:200],
            status=status,
            took_ms=round(1e3 * took_s, 2),
            client=client[0] if client else None,
            user=None if (token := scope.get(BEARER)) is None else token.user,
            request_id=request_id,
            job_id=None if (asked := scope.get(ASKED)) is None else asked.job_id,
            command_id=None if asked is None else asked.command_id,
        )


def is_page(scope: Scope) -> bool:
    """Whether a request is for a page for people."""
    path: str = scope["path"]
    return path in ("/", PAGES) or path.startswith(f"{PAGES}/")


@lru_cache(maxsize=256)  # all requests of a client have the same one
def _name_in(host: str) -> str:
    """The name in a Host header, without a port, in small letters; empty where it holds something else."""
    try:
        parts = urlsplit(f"//{host}")
        name, _ = parts.hostname or "", parts.port
    except ValueError:
        return ""
    return "" if "@" in host else name


def _as_get(scope: Scope) -> Scope:
    """A HEAD as the GET whose head is wanted (RFC 9110, section 9.3.2): the server sends no body.

    But for Zeus' wire, on which a GET begins a trial; and pages have it from their framework.
    """
    if scope["method"] != "HEAD" or is_zeus_path(scope["path"]) or is_page(scope):
        return scope
    headers = [each for each in scope["headers"] if each[0] != b"accept"]  # that of a stream would never end
    return {**scope, "method": "GET", "headers": headers}


def _request_id(headers: Mapping[str, str]) -> str:
    """The client's own id of a request, if it is plain and short; else a new one."""
    given = headers.get("x-request-id", "")
    is_plain = 0 < len(given) <= 64 and all(each.isalnum() or each in "-_." for each in given) and given.isascii()
    return given if is_plain else f"{_OWN_IDS}{next(_numbers):016x}"


def _is_own(origin: str, scheme: str, host: str) -> bool:
    """Whether an origin is this gateway's. A proxy in front may have TLS, and not say so; without TLS none has."""
    return origin == f"https://{host}" or (scheme == "http" and origin == f"http://{host}")


def _wrong_content(content_type: str | None, encoding: str | None, *, may_lack: bool) -> HttpError | None:
    if encoding not in (None, "", "identity"):
        words = f"expected a body without Content-Encoding, got {encoding[:80]}"
        return HttpError(415, words, kind="unsupported_media_type")
    if content_type is None and may_lack:
        return None
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind == _JSON or (kind.startswith("application/") and kind.endswith("+json")):
        return None
    words = f"expected a body of Content-Type {_JSON}, got {content_type[:80] if content_type else 'none'}"
    return HttpError(415, words, kind="unsupported_media_type")
