"""The pages about jobs, savings and trials, and the way to all pages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from bso.domain.events import (
    BatchSizeAllowed,
    ChangePoint,
    EpochReported,
    JobDeleted,
    JobGiven,
    JobGranted,
    JobRegistered,
    JobRespecified,
)
from bso.domain.foreign_text import shown
from bso.domain.job_spec import JobSpec
from bso.domain.quantities import listed, moment
from bso.domain.rights import Right
from bso.domain.savings import Tariff
from bso.domain.sentences import sentence
from bso.domain.trial import Trial
from bso.replay.hindsight import Hindsight
from bso.service.flat_rows import csv_lines, trial_fields
from bso.service.records import StoredEvent
from bso_gateway.http import UNTIL, Gate, HttpError, operates_all, token_of
from bso_gateway.live import Streams, pause
from bso_gateway.pages.all_jobs import JobsReader
from bso_gateway.pages.contents import AT_LENGTH, AT_ONCE, Contents, fleet_of
from bso_gateway.pages.door import KEY, Door, admit, client_of, form_of
from bso_gateway.pages.operation import OperationPages
from bso_gateway.pages.paths import PREFIX
from bso_gateway.pages.pictures import picture_of_savings, pictures_of_job, pictures_of_trial, spec_of
from bso_gateway.pages.renderer import Renderer
from bso_gateway.pages.what_if_pages import WhatIfPages

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_ALIVE_EVERY_S = 10.0
_MOST_SENTENCES, _MOST_LISTED, _MOST_CHANGES = 30, 30, 20  # with four pictures, less than 2 000 elements
_MOST_DIGITS = 15
_CHANGES = (JobRegistered, JobRespecified, ChangePoint, BatchSizeAllowed, JobGranted, JobGiven, JobDeleted)
_GLANCE_S, _SAVINGS_WAIT_S = 0.5, 1.0  # that pages wait for jobs that are being read
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

    def __init__(self, gate: Gate, streams: Streams, door: Door, tariff: Tariff) -> None:
        self._gate = gate
        self._streams = streams
        self._door = door
        self._contents = Contents(gate)
        self._jobs = JobsReader(gate)
        self._reading_at_length = asyncio.Lock()
        self._renderer = Renderer(asks_for_token=door.asks_for_token, tariff=tariff)
        self._others = (
            OperationPages(gate, door, self._renderer, self._contents, self._jobs),
            WhatIfPages(gate, door, self._renderer, self._contents),
        )

    def app(self) -> ASGIApp:
        """The application, which answers each request below its prefix."""
        routes = [
            Route("/", self.first),
            Route(PREFIX, self.fleet),
            Route(f"{PREFIX}/savings", self.savings),
            Route(f"{PREFIX}/jobs/{{job_id}}", self.job),
            Route(f"{PREFIX}/jobs/{{job_id}}/changes", self.changes),
            Route(f"{PREFIX}/jobs/{{job_id}}/trials.csv", self.export),
            Route(f"{PREFIX}/jobs/{{job_id}}/trials/{{trial_number}}", self.trial),
            Route(f"{PREFIX}/login", self.login, methods=["GET", "POST"]),
            Route(f"{PREFIX}/logout", self.logout, methods=["POST"]),
            Route(f"{PREFIX}/static/{{name}}", self.static),
            *(route for pages in self._others for route in pages.routes()),
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
        await admit(request, self._door)
        given = request.query_params
        found = await self._jobs.jobs(request, wait_s=_GLANCE_S)
        asked = {name: given.get(name, "") for name in ("contains", "sort", "page")}
        fleet, total, months = await asyncio.to_thread(
            lambda: (fleet_of(found, **asked), found.total(), found.by_month())
        )
        return await self._renderer.page(
            "fleet.html",
            fleet=fleet,
            all_jobs=found,
            total=total,
            picture=await asyncio.to_thread(picture_of_savings, months) if len(months) > 1 else "",
            may_operate=operates_all(token_of(request)),
        )

    async def savings(self, request: Request) -> Response:
        """What all jobs saved: by month, and those that saved or lost most."""
        await admit(request, self._door)
        prefix = request.query_params.get("prefix", "")
        found = await self._jobs.jobs(request, wait_s=_SAVINGS_WAIT_S)
        months, jobs = await asyncio.to_thread(lambda: (found.by_month(prefix), found.by_job(prefix)))
        return await self._renderer.page(
            "savings.html",
            prefix=prefix,
            all_jobs=found,
            total=await asyncio.to_thread(found.total, prefix),
            months=list(months.items())[:_MOST_LISTED],
            jobs=jobs[:_MOST_LISTED],
            count=len(jobs),
            picture=await asyncio.to_thread(picture_of_savings, months),
        )

    async def job(self, request: Request) -> Response:
        """One job: what is expected, what ran, and why."""
        await admit(request, self._door)
        found = await self._contents.job(request, request.path_params["job_id"])
        kind = found.kind(request.query_params.get("hardware"))
        return await self._renderer.page(
            "job.html",
            contents=found,
            kind=kind,
            may_operate=_may_operate(request, found.job_id),
            saving=None if kind is None else found.saving(kind),
            measured=[] if kind is None else list(found.measured(kind)),
            specification=[] if found.job is None else _fields_of(found.job.spec),
            pictures={} if found.job is None else await asyncio.to_thread(pictures_of_job, found, kind),
            trials=list(reversed(found.trials))[:_MOST_LISTED],
            versions=list(found.versions()),
            changes=_story([each for each in found.events if isinstance(each.recorded.event, _CHANGES)])[
                :_MOST_CHANGES
            ],
            story=_story([each for each in found.events if not isinstance(each.recorded.event, EpochReported)])[
                :_MOST_SENTENCES
            ],
        )

    async def export(self, request: Request) -> Response:
        """All trials of a job, as ``bso jobs export --format csv`` has them."""
        await admit(request, self._door)
        job_id = request.path_params["job_id"]
        pages = self._contents.all_trials(request, job_id)
        first: Sequence[Trial] = await anext(pages, ())  # that there is such a job, and that the reader may see it

        async def lines() -> AsyncIterator[str]:
            yield csv_lines([trial_fields(job_id, each) for each in first], with_header=True)
            async for page in pages:
                yield csv_lines([trial_fields(job_id, each) for each in page], with_header=False)

        name = re.sub(r"[^A-Za-z0-9._-]", "_", job_id)
        headers = {"Content-Disposition": f'attachment; filename="{name}-trials.csv"'}
        return StreamingResponse(lines(), media_type="text/csv", headers=headers)

    async def trial(self, request: Request) -> Response:
        """One trial: why it had its batch size, what it reported, how it ended."""
        await admit(request, self._door)
        number: str = request.path_params["trial_number"]
        if not (number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS):
            raise HttpError(404, f"{number[:60]!r} is no number of a trial", kind="unknown_trial")
        found = await self._contents.trial(request, request.path_params["job_id"], int(number))
        trial = found.trials[0]
        most_pages = AT_LENGTH if request.query_params.get("known") == "all" else AT_ONCE
        known = await self._known_before(request, found.job_id, trial, most_pages=most_pages)
        return await self._renderer.page(
            "trial.html",
            contents=found,
            trial=trial,
            hindsight=None if isinstance(known, str) else known,
            not_known=known if isinstance(known, str) else "",
            may_read_more=most_pages == AT_ONCE,
            spec=spec_of(found, trial),
            reports=found.reports().get(trial.trial_number, ()),
            pictures=await asyncio.to_thread(pictures_of_trial, found, trial),
            story=_story(found.events)[::-1],
        )

    async def _known_before(self, request: Request, job_id: str, trial: Trial, *, most_pages: int) -> Hindsight | str:
        """As Contents has it; one long log is read at a time."""
        if most_pages == AT_ONCE:
            return await self._contents.known_before(request, job_id, trial, most_pages=most_pages)
        async with self._reading_at_length:
            return await self._contents.known_before(request, job_id, trial, most_pages=most_pages)

    async def changes(self, request: Request) -> Response:
        """A line of an event stream whenever the log of a job has grown."""
        await admit(request, self._door)
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
            await pause(self._gate.is_draining, pause_s=self._streams.page_pause_s)
            try:
                request.scope.pop(UNTIL, None)
                await admit(request, self._door)
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
            return await self._renderer.page("login.html", next=following, failed="")
        form = await form_of(request, self._gate)
        following = _own_path(form.get("next", ""))
        try:
            return await self._opened(request, form.get("token", "").strip(), following)
        except HttpError as error:
            return await self._renderer.page("login.html", next=following, failed=error.message, status=error.status)

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

    async def _opened(self, request: Request, secret: str, following: str) -> Response:
        """On to the page that was asked for, with a session."""
        session = await self._door.open(secret, client=client_of(request))
        answer = await self._renderer.page("onwards.html", following=following)
        is_secure = request.url.scheme == "https"
        answer.set_cookie(self._door.cookie, session, path=PREFIX, httponly=True, samesite="strict", secure=is_secure)
        return answer

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HttpError)
        if error.status == 401 and request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            if request.headers.get("sec-fetch-site") == "cross-site":
                # A link of another site: the browser keeps the session back, and sends it when this page goes on.
                return await self._renderer.page("onwards.html", following=_place_of(request))
            if self._door.asks_for_token:
                return RedirectResponse(f"{PREFIX}/login?next={quote(_place_of(request))}", 303)
        page = await self._renderer.page("error.html", error=error, status=error.status)
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


def _may_operate(request: Request, job_id: str) -> bool:
    """Whether actions on a job are offered; who decides commands decides whether they are done."""
    token = token_of(request)
    return token is None or token.covers(Right.OPERATE, job_id)


def _fields_of(spec: JobSpec) -> list[tuple[str, str]]:
    """The names that a specification has in scripts, and its values as people read them."""
    values = ((field.name, getattr(spec, field.name)) for field in fields(spec))
    return [(name, listed(value) if isinstance(value, tuple) else str(value)) for name, value in values]


def _story(events: Sequence[StoredEvent]) -> list[tuple[str, str]]:
    """What happened, the newest first: moments and sentences."""
    return [(moment(each.recorded.recorded_at), sentence(each.recorded.event)) for each in reversed(events)]


def _place_of(request: Request) -> str:
    return f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path


def _own_path(given: str) -> str:
    """A place of ours to go on to; anything else leads to the first page."""
    pages = rf"{PREFIX}(/savings|/operation(/dead-letters)?|/jobs/[A-Za-z0-9._+:%-]+(/trials/[0-9]+|/what-if)?)?"
    pages += r"(\?[A-Za-z0-9._+:%=&-]*)?"
    return given if re.fullmatch(pages, given) else PREFIX
