"""The routes of pages, and how what they show becomes HTML."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import structlog
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from bso.domain.events import EpochReported
from bso.domain.foreign_text import shown
from bso.domain.job_spec import JobSpec
from bso.domain.quantities import (
    NOTHING,
    figure,
    joules,
    joules_within,
    listed,
    moment,
    number,
    percent,
    seconds,
    watts,
)
from bso.domain.sentences import described, sentence, status_in_words
from bso.service.records import StoredEvent
from bso_gateway.http import BEARER, UNTIL, Gate, HttpError, token_of
from bso_gateway.live import Streams, pause
from bso_gateway.pages.contents import Contents
from bso_gateway.pages.door import KEY, Door
from bso_gateway.pages.paths import PREFIX, job_path, trial_path
from bso_gateway.pages.pictures import pictures_of_job, pictures_of_trial, spec_of
from bso_optimizer import DISTRIBUTION

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_ALIVE_EVERY_S = 10.0
_MOST_SENTENCES, _MOST_LISTED = 30, 30  # with four pictures, less than 2 000 elements
_MOST_DIGITS = 15
_STATIC = {"page.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with none at all, browsers do not say where a form comes from
    "Cache-Control": "no-store",
}


class Pages:
    """All pages, as an application below /ui. Those that are followed live end when the gateway does."""

    def __init__(self, gate: Gate, streams: Streams, door: Door) -> None:
        self._gate = gate
        self._streams = streams
        self._door = door
        self._contents = Contents(gate)
        self._templates = Environment(
            loader=PackageLoader("bso_gateway.pages"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_plain,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals |= {
            "joules": joules,
            "joules_within": joules_within,
            "seconds": seconds,
            "moment": moment,
            "number": number,
            "percent": percent,
            "watts": watts,
            "figure": figure,
            "described": described,
            "NOTHING": NOTHING,
            "PREFIX": PREFIX,
            "version": version(DISTRIBUTION),
            "job_path": job_path,
            "trial_path": trial_path,
            "asks_for_token": door.asks_for_token,
            "status_in_words": status_in_words,
        }

    def app(self) -> ASGIApp:
        """The application, which answers each request below its prefix."""
        routes = [
            Route("/", self.first),
            Route(PREFIX, self.fleet),
            Route(f"{PREFIX}/jobs/{{job_id}}", self.job),
            Route(f"{PREFIX}/jobs/{{job_id}}/changes", self.changes),
            Route(f"{PREFIX}/jobs/{{job_id}}/trials/{{trial_number}}", self.trial),
            Route(f"{PREFIX}/login", self.login, methods=["GET", "POST"]),
            Route(f"{PREFIX}/logout", self.logout, methods=["POST"]),
            Route(f"{PREFIX}/static/{{name}}", self.static),
        ]
        handlers: Mapping[Any, Any] = {
            HttpError: self._refused,
            HTTPException: self._not_routed,
            Exception: self._unforeseen,
        }
        return _WithHeaders(Starlette(routes=routes, exception_handlers=handlers))

    async def first(self, request: Request) -> Response:
        """From the bare address to the pages."""
        return RedirectResponse(PREFIX, 303)

    async def fleet(self, request: Request) -> Response:
        """All jobs at a glance."""
        if KEY in request.query_params and not self._door.asks_for_token:
            return await self._opened(request, request.query_params[KEY], PREFIX)
        await self._admit(request)
        given = request.query_params
        found = await self._contents.fleet(request, prefix=given.get("prefix", ""), after=given.get("after", ""))
        return await self._page("fleet.html", fleet=found)

    async def job(self, request: Request) -> Response:
        """One job: what is expected, what ran, and why."""
        await self._admit(request)
        found = await self._contents.job(request, request.path_params["job_id"])
        kind = found.kind(request.query_params.get("hardware"))
        return await self._page(
            "job.html",
            contents=found,
            kind=kind,
            saving=None if kind is None else found.saving(kind),
            measured=[] if kind is None else list(found.measured(kind)),
            specification=[] if found.job is None else _fields_of(found.job.spec),
            pictures={} if found.job is None else await asyncio.to_thread(pictures_of_job, found, kind),
            trials=list(reversed(found.trials))[:_MOST_LISTED],
            story=_story([each for each in found.events if not isinstance(each.recorded.event, EpochReported)])[
                :_MOST_SENTENCES
            ],
        )

    async def trial(self, request: Request) -> Response:
        """One trial: why it had its batch size, what it reported, how it ended."""
        await self._admit(request)
        number: str = request.path_params["trial_number"]
        if not (number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS):
            raise HttpError(404, f"{number[:60]!r} is no number of a trial", kind="unknown_trial")
        found = await self._contents.trial(request, request.path_params["job_id"], int(number))
        trial = found.trials[0]
        return await self._page(
            "trial.html",
            contents=found,
            trial=trial,
            spec=spec_of(found, trial),
            reports=found.reports().get(trial.trial_number, ()),
            pictures=await asyncio.to_thread(pictures_of_trial, found, trial),
            story=_story(found.events)[::-1],
        )

    async def changes(self, request: Request) -> Response:
        """A line of an event stream whenever the log of a job has grown."""
        await self._admit(request)
        token = token_of(request)
        user = None if token is None else token.user
        self._streams.take_place(user)
        try:
            newest = await self._contents.newest(request, request.path_params["job_id"])
        except BaseException:
            self._streams.leave(user)
            raise
        return self._streams.answer(self._followed(request, newest), user)

    async def _followed(self, request: Request, newest: int) -> AsyncIterator[bytes]:
        clock = asyncio.get_running_loop().time
        silent_since_s = clock() - _ALIVE_EVERY_S
        while not self._gate.is_draining.is_set():
            if clock() - silent_since_s >= _ALIVE_EVERY_S:
                yield b": alive\n\n"
                silent_since_s = clock()
            await pause(self._gate.is_draining)
            try:
                request.scope.pop(UNTIL, None)
                await self._admit(request)
                before, newest = newest, await self._contents.newest(request, request.path_params["job_id"])
            except HttpError as error:
                if error.status < 500 and error.status != 429:
                    return
                continue
            if newest != before:
                yield b"event: changed\ndata: %d\n\n" % newest

    async def login(self, request: Request) -> Response:
        """The form for a token, and what becomes of it."""
        if not self._door.asks_for_token:
            raise HttpError(404, "nobody needs a token here", kind="no_such_page")
        if request.method == "GET":
            following = _own_path(request.query_params.get("next", ""))
            return await self._page("login.html", next=following, failed="")
        form = parse_qs((await self._gate.body(request)).decode(errors="replace"))
        following = _own_path(form.get("next", [""])[0])
        try:
            return await self._opened(request, form.get("token", [""])[0].strip(), following)
        except HttpError as error:
            return await self._page("login.html", next=following, failed=error.message, status=error.status)

    async def logout(self, request: Request) -> Response:
        """Forget the session in this browser."""
        answer = RedirectResponse(f"{PREFIX}/login" if self._door.asks_for_token else PREFIX, 303)
        answer.delete_cookie(self._door.cookie, path=PREFIX)
        return answer

    async def static(self, request: Request) -> Response:
        """The style sheet and the script."""
        name = request.path_params["name"]
        if name not in _STATIC:
            raise HttpError(404, f"there is no file {name[:80]!r}", kind="no_such_page")
        content = await asyncio.to_thread((Path(__file__).parent / "static" / name).read_bytes)
        return Response(content, media_type=_STATIC[name], headers={"Cache-Control": "max-age=3600"})

    async def _admit(self, request: Request) -> None:
        """Find out who looks. Raises HttpError 401."""
        session = request.cookies.get(self._door.cookie)
        request.scope[BEARER] = await self._door.admit(session, client=_client(request))

    async def _opened(self, request: Request, secret: str, following: str) -> Response:
        """On to the page that was asked for, with a session."""
        session = await self._door.open(secret, client=_client(request))
        answer = await self._page("onwards.html", following=following)
        is_secure = request.url.scheme == "https"
        answer.set_cookie(self._door.cookie, session, path=PREFIX, httponly=True, samesite="strict", secure=is_secure)
        return answer

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HttpError)
        if error.status == 401 and request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            if request.headers.get("sec-fetch-site") == "cross-site":
                # A link of another site: the browser keeps the session back, and sends it when this page goes on.
                following = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
                return await self._page("onwards.html", following=following)
            if self._door.asks_for_token:
                return RedirectResponse(f"{PREFIX}/login?next={quote(request.url.path)}", 303)
        page = await self._page("error.html", error=error, status=error.status)
        page.headers.update({name: value for name, value in error.headers.items() if name != "WWW-Authenticate"})
        return page

    async def _unforeseen(self, request: Request, error: Exception) -> Response:
        _log.error("an unforeseen error of a page", action="unforeseen_error", exc_info=error)
        words = "an unforeseen error, which stands in the log of the gateway"
        return await self._refused(request, HttpError(500, words, kind="unforeseen"))

    async def _not_routed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        words = f"there is no page {shown(request.url.path[:200])}"
        return await self._refused(request, HttpError(error.status_code, words, kind="no_such_page"))

    async def _page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        text = await asyncio.to_thread(self._templates.get_template(template).render, **values)
        return Response(text, status, media_type="text/html")


class _WithHeaders:
    """An application whose answers say what a browser may do with them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                more = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *(one for one in more if one[0] not in given)]
            await send(message)

        await self._app(scope, receive, sent)


def _fields_of(spec: JobSpec) -> list[tuple[str, str]]:
    """The names that a specification has in scripts, and its values as people read them."""
    values = ((field.name, getattr(spec, field.name)) for field in fields(spec))
    return [(name, listed(value) if isinstance(value, tuple) else str(value)) for name, value in values]


def _story(events: Sequence[StoredEvent]) -> list[tuple[str, str]]:
    """What happened, the newest first: moments and sentences."""
    return [(moment(each.recorded.recorded_at), sentence(each.recorded.event)) for each in reversed(events)]


def _own_path(given: str) -> str:
    """A path of ours to go on to; anything else leads to the first page."""
    return given if re.fullmatch(rf"{PREFIX}/jobs/[A-Za-z0-9._+:%-]+(/trials/[0-9]+)?", given) else PREFIX


def _plain(value: Any) -> Any:
    """What a template prints: text without characters that would hide or reorder it."""
    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _client(request: Request) -> str:
    return request.client.host if request.client else "an unknown address"
