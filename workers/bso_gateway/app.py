"""The application: routes, error pages, health and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from importlib.metadata import version
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic_core import to_json
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from bso.credentials import without_passwords
from bso.domain.savings import Tariff
from bso.schema.wrong_values import explained
from bso_gateway.access import Access
from bso_gateway.description import schemas
from bso_gateway.front import Front, GatewayMetrics
from bso_gateway.http import Gate, HttpError, Limits, answer
from bso_gateway.live import Streams
from bso_gateway.optimizer import Optimizer
from bso_gateway.pages.door import KeyDoor, TokenDoor
from bso_gateway.pages.routes import Pages
from bso_gateway.problems import error_page, problem_response
from bso_gateway.rest import PREFIX, RestApi
from bso_gateway.settings import GatewaySettings
from bso_gateway.zeus_wire import ZeusWire, is_zeus_path
from bso_optimizer import DISTRIBUTION

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
_DESCRIPTION = (
    "The batch size optimizer over HTTP. Clients of Zeus' batch size server find the same routes, bodies and statuses; "
    "all else for programs is under /v1. Every answer has an X-Request-Id: that of the request where it is plain, of "
    "at most 64 characters, else a new one."
)


def gateway_app(
    settings: GatewaySettings,
    optimizer: Optimizer,
    *,
    is_draining: asyncio.Event,
    show_key: Callable[[str], None],
    tariff: Tariff,
) -> ASGIApp:
    """The application over an optimizer that somebody else starts and closes.

    ``show_key`` is called with each key that opens the pages, where no token does. ``tariff`` is what savings are
    valued at.
    """
    metrics = GatewayMetrics()
    app = FastAPI(
        title="bso",
        description=_DESCRIPTION,
        openapi_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    gate, streams = _gate(settings, optimizer, is_draining), Streams()
    wire = ZeusWire(gate, policy=settings.policy_of_new_jobs, is_strict=settings.zeus_strict)
    app.include_router(wire.router())
    app.include_router(RestApi(gate, streams).router())
    _add_health(app, optimizer, metrics)
    _add_description(app)
    app.add_exception_handler(HttpError, _shown)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StarletteHTTPException, _not_routed)
    app.add_exception_handler(Exception, _unforeseen)
    access = Access(gate.check) if settings.tokens else None
    return Front(
        app,
        pages=_pages(gate, streams, access, show_key, tariff),
        names=settings.names,
        metrics=metrics,
        has_access_log=settings.access_log,
        access=access,
        answer_timeout_s=settings.answer_timeout_s,
        direct={("POST", "/report"): _directly(wire.report)},
    )


def _directly(route: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
    """A route without the framework around it, and with the same answers to what goes wrong."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            answered = await route(request)
        except HttpError as error:
            answered = await _shown(request, error)
        except Exception as error:  # noqa: BLE001  the next request may be answered
            answered = await _unforeseen(request, error)
        await answered(scope, receive, send)

    return app


def dashboard_app(
    settings: GatewaySettings,
    optimizer: Optimizer,
    *,
    is_draining: asyncio.Event,
    show_key: Callable[[str], None],
    tariff: Tariff,
) -> ASGIApp:
    """The pages alone, for the one who gets the keys."""
    pages = _pages(_gate(settings, optimizer, is_draining), Streams(), None, show_key, tariff)
    return Front(
        pages,
        pages=pages,
        names=frozenset(),
        metrics=GatewayMetrics(),
        has_access_log=settings.access_log,
        access=None,
        answer_timeout_s=settings.answer_timeout_s,
        direct={},
    )


def _gate(settings: GatewaySettings, optimizer: Optimizer, is_draining: asyncio.Event) -> Gate:
    limits = Limits(
        max_body_bytes=settings.max_body_bytes,
        body_timeout_s=settings.body_timeout_s,
        answer_timeout_s=settings.answer_timeout_s,
    )
    return Gate(optimizer, limits, is_draining=is_draining)


def _pages(
    gate: Gate, streams: Streams, access: Access | None, show_key: Callable[[str], None], tariff: Tariff
) -> ASGIApp:
    if access is not None:
        return Pages(gate, streams, TokenDoor(access), tariff).app()
    door = KeyDoor(show=show_key)
    door.show_key()
    return Pages(gate, streams, door, tariff).app()


def _add_health(app: FastAPI, optimizer: Optimizer, metrics: GatewayMetrics) -> None:
    async def livez() -> Response:
        """200 as long as requests are answered at all."""
        return answer({"alive": True})

    async def readyz() -> Response:
        """200, or 503 with the reason why commands cannot be decided."""
        trouble = optimizer.trouble
        reasons = {} if trouble is None else {"optimizer": without_passwords(trouble)}
        return answer({"ready": trouble is None, "reasons": reasons}, status=200 if trouble is None else 503)

    async def counted() -> Response:
        """Everything counted, in Prometheus' text format."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    for path, page in (("/livez", livez), ("/readyz", readyz), ("/metrics", counted)):
        not_ready: dict[int | str, dict[str, Any]] = {503: {"description": "Not ready"}} if page is readyz else {}
        app.get(path, name=path.removeprefix("/"), tags=["Health"], response_class=Response, responses=not_ready)(page)


def _add_description(app: FastAPI) -> None:
    @cache
    def described() -> bytes:
        return to_json(_openapi(app))

    async def openapi() -> Response:
        return Response(described(), media_type="application/json")

    app.add_api_route("/openapi.json", openapi, methods=["GET"], include_in_schema=False)


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The description of all routes, with the schemas of bodies that the routes read by themselves."""
    described = get_openapi(
        title=app.title, version=version(DISTRIBUTION), description=app.description, routes=app.routes
    )
    components = described.setdefault("components", {})
    components.setdefault("schemas", {}).update(schemas())
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "password": {"type": "http", "scheme": "basic", "description": "The token is the password, under any name."},
    }
    described["security"] = [{"token": []}, {"password": []}, {}]
    return described


async def _not_routed(request: Request, error: Exception) -> Response:
    """Where no route is: in the framework's own form outside of /v1, as Zeus' server has it."""
    assert isinstance(error, StarletteHTTPException)
    if error.status_code == 405:  # the framework names the methods of the first route of this path alone
        error.headers = {"Allow": ", ".join(_methods_at(request))}
    if not request.url.path.startswith(PREFIX):
        return await http_exception_handler(request, error)
    kind = {404: "no_such_page", 405: "no_such_method"}.get(error.status_code, "bad_request")
    shown = problem_response(HttpError(error.status_code, f"{request.method} {request.url.path[:200]}", kind=kind))
    shown.headers.update(error.headers or {})
    return shown


def _methods_at(request: Request) -> list[str]:
    """The methods with which the path of a request has an answer."""
    asked = [(method, {**request.scope, "method": method}) for method in _METHODS]
    return [
        method for method, scope in asked if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
    ]


async def _unforeseen(request: Request, error: Exception) -> Response:
    _log.error("an unforeseen error of a request", action="unforeseen_error", exc_info=error)
    failed = HttpError(500, "an unforeseen error, which stands in the log of the gateway", kind="unforeseen")
    return error_page(request.url.path, failed)


async def _shown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return error_page(request.url.path, error)


async def _invalid(request: Request, error: Exception) -> Response:
    """What is wrong with a query, in FastAPI's own form on Zeus' routes, as Zeus' server has it."""
    assert isinstance(error, RequestValidationError)
    if not is_zeus_path(request.url.path):
        faults = {".".join(map(str, fault["loc"])): explained(fault) for fault in error.errors()}
        return problem_response(HttpError(422, "the query is not as expected", kind="invalid_query", fields=faults))
    details: list[Any] = [
        {"loc": list(fault["loc"]), "msg": fault["msg"], "type": fault["type"]} for fault in error.errors()
    ]
    return answer({"detail": details}, status=422)
