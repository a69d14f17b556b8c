"""The API of this optimizer itself, version 1: what trainings and operators ask, as resources."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi import Query as QueryParameter
from pydantic import BeforeValidator, ValidationError
from pydantic_core import PydanticKnownError, from_json
from starlette.requests import Request
from starlette.responses import Response

from bso.domain import commands as do
from bso.domain import replies
from bso.domain.commands import Command
from bso.domain.errors import Rejected
from bso.domain.frozen_values import replace
from bso.domain.identifiers import identifier_problem, job_id_for
from bso.domain.replies import Problem
from bso.domain.rights import Right
from bso.domain.tokens import Token
from bso.domain.trial import Outcome, TrialState
from bso.schema.codec import all_events, command_from, decode_command, encode_reply
from bso.schema.errors import MalformedMessage
from bso.service import queries
from bso.service.queries import Page, Query
from bso.service.records import JobOverview
from bso_gateway import description
from bso_gateway.description import JOB, ROUTES, STREAM, Route
from bso_gateway.http import (
    BEARER,
    RECHECK,
    UNTIL,
    Gate,
    HttpError,
    answer,
    command_id_of,
    faults_of,
    token_of,
)
from bso_gateway.live import Place, PlaceInLog, PlacesInLogs, Streams, followed, passed
from bso_gateway.problems import refused

PREFIX = "/v1"
_MOST = 2**63 - 1
_SEVERAL = ("type", "job_id")
"""Parts of a query that may be given more than once."""
_PLAIN_NUMBER = re.compile(r"0|-?[1-9][0-9]*")  # one number has one form: int() also reads 1_0, +10, 010 and 10.0
_IN_PATHS = ("trial_number", "batch_size")


def _plain(given: str) -> str:
    if _PLAIN_NUMBER.fullmatch(given) is None:
        raise PydanticKnownError("int_parsing")
    return given


PlainNumber = Annotated[int, BeforeValidator(_plain)]
Cursor = Annotated[PlainNumber, QueryParameter(ge=0, le=_MOST)]
EventTypes = Annotated[
    frozenset[str], QueryParameter(alias="type", description="Only events of these types, such as trial_ended")
]


class RestApi:
    """The routes under /v1."""

    def __init__(self, gate: Gate, streams: Streams) -> None:
        self._gate = gate
        self._streams = streams

    def router(self) -> APIRouter:
        """All routes, with what they take and return."""
        router = APIRouter(prefix=PREFIX, tags=["v1"], dependencies=[Depends(_require_known_parameters)])
        for route in ROUTES:
            router.add_api_route(
                route.path,
                self._decision(route),
                methods=[route.method],
                response_class=Response,
                **description.decision(route),
            )
        for path, passed_on, asked, operation_id, summary in (
            (
                "/commands",
                self.command,
                "CommandMessage",
                "send_command",
                "Any command, as the message that goes through a broker; its reply as one",
            ),
            ("/queries", self.query, "QueryMessage", "send_query", "Any query, as a message; its page as one"),
        ):
            said: dict[str, Any] = {**description.message(asked, "AnswerMessage"), "operation_id": operation_id}
            router.add_api_route(path, passed_on, methods=["POST"], summary=summary, response_class=Response, **said)
        self._add_pages(router)
        return router

    def _add_pages(self, router: APIRouter) -> None:
        for path, page, answered, operation_id, summary in (
            ("/jobs", self.jobs, "ListedJobs", "list_jobs", "The jobs that may be read, by id"),
            ("/savings", self.savings, "SavingsPage", "list_savings", "What each job saved, by month"),
            ("/operation", self.operation, "Operation", "show_operation", "How the store of all jobs stands"),
            (JOB, self.job, "JobDescription", "show_job", "One job: what is known, what runs, what is expected"),
            (f"{JOB}/trials", self.trials, "TrialsPage", "list_trials", "The trials of a job, by number"),
            (f"{JOB}/events", self.events, "Events", "list_events", "The log of a job"),
            ("/events", self.events_of_jobs, "EventsOfJobs", "list_events_of_jobs", "The logs of several jobs"),
            (
                f"{JOB}/power-profiles",
                self.power_profiles,
                "PowerProfilesPage",
                "list_power_profiles",
                "What was measured under several power limits",
            ),
        ):
            is_streamed = path.endswith("/events")
            said: dict[str, Any] = {**description.page(answered, is_streamed=is_streamed), "operation_id": operation_id}
            router.add_api_route(path, page, methods=["GET"], summary=summary, response_class=Response, **said)

    def _decision(self, route: Route) -> Callable[[Request], Awaitable[Response]]:
        async def decision(request: Request) -> Response:
            return await self._decide(request, route)

        return decision

    async def _decide(self, request: Request, route: Route) -> Response:
        given = await self._given(request)
        try:
            in_path = {name: request.path_params[name] for name in route.fields_in_path}
            _require_plain_numbers(in_path)
            command = command_from(route.command, given, in_path)
        except MalformedMessage as error:
            fields = faults_of(error.__cause__) if isinstance(error.__cause__, ValidationError) else {}
            raise HttpError(422, str(error), kind="invalid_body", fields=fields) from error
        _require_trial_id(command)
        job_id = request.path_params.get("job_id")
        if job_id is None:
            prefix = command.job_id_prefix if isinstance(command, do.RegisterJob) else ""
            _check("job_id_prefix", prefix)
            job_id = job_id_for(prefix, command_id_of(request))
        _check("job_id", job_id)
        reply = await self._gate.call(request, job_id, command)
        if isinstance(reply, Problem):
            raise refused(reply)
        is_new = isinstance(reply, replies.Registered) and reply.is_new
        return answer(reply, status=201 if is_new else route.status)

    async def _given(self, request: Request) -> dict[str, Any]:
        """The fields of a command that stand in the body. Raises HttpError where the path says otherwise."""
        body = await self._gate.body(request)
        try:
            given = from_json(body) if body else {}
        except ValueError as error:
            raise HttpError(422, f"the body is no JSON: {error}", kind="invalid_body") from error
        if not isinstance(given, dict):
            raise HttpError(422, "expected a JSON object", kind="invalid_body")
        differing = {
            name: f"is {str(given[name])[:60]!r} in the body, and {text[:60]!r} in the path"
            for name, text in request.path_params.items()
            if str(given.get(name, text)) != text
        }
        if differing:
            raise HttpError(422, "body and path differ", kind="invalid_body", fields=differing)
        return given

    async def command(self, request: Request) -> Response:
        """The reply to a command, both as messages; a refusal is a reply, too."""
        try:
            asked = decode_command(await self._gate.body(request))
        except Rejected as error:
            raise HttpError(422, str(error), kind="malformed") from error
        _require_trial_id(asked.command)
        reply = await self._gate.decide(request, replace(asked, on_behalf_of=None))
        return _as_message(encode_reply(reply, command_id=asked.command_id, job_id=asked.job_id))

    async def query(self, request: Request) -> Response:
        """The answer to a query, both as messages."""
        try:
            asked = queries.decode_query(await self._gate.body(request), user=None)
        except Rejected as error:
            raise HttpError(422, str(error), kind="malformed") from error
        page = await self._gate.ask(request, asked.query, asked.job_id)
        _require_own_place(token_of(request), page)
        return _as_message(queries.encode_page(page, query_id=asked.query_id, job_id=asked.job_id))

    async def jobs(self, request: Request, after: str = "") -> Response:
        """A page of jobs; ``next_after`` is where the next one begins, null on the last."""
        page = await self._ask(request, queries.ListJobs(after=_known_id(after)))
        assert isinstance(page, queries.JobsPage)
        parked = {each.job_id: each.reason for each in page.parked}
        listed = [_listed(each) | {"trouble": parked.get(each.summary.job_id)} for each in page.jobs]
        return answer({"jobs": listed, "next_after": page.next_after})

    async def savings(self, request: Request, after: str = "") -> Response:
        """What jobs saved, by month; ``next_after`` is where the next page begins, null on the last."""
        return answer(await self._ask(request, queries.ListSavings(after=_known_id(after))))

    async def operation(self, request: Request) -> Response:
        """How the store of all jobs stands."""
        return answer(await self._ask(request, queries.ShowOperation()))

    async def job(self, request: Request, job_id: str) -> Response:
        """One job."""
        page = await self._ask(request, queries.ShowJob(), job_id)
        assert isinstance(page, queries.ShownJob)
        if page.job is None:
            raise HttpError(503, page.unreadable or "the job cannot be read", kind="job_unreadable", retry_after_s=60.0)
        return answer(page.job)

    async def trials(
        self,
        request: Request,
        job_id: str,
        after: Cursor = 0,
        *,
        state: TrialState | None = None,
        outcome: Outcome | None = None,
        batch_size: PlainNumber | None = None,
    ) -> Response:
        """A page of trials, each with why it was chosen and how it ended; filtered, it may be a short one."""
        page = await self._ask(request, queries.ListTrials(after=after), job_id)
        assert isinstance(page, queries.TrialsPage)
        wanted = {"state": state, "outcome": outcome, "batch_size": batch_size}
        given = {name: value for name, value in wanted.items() if value is not None}
        trials = tuple(
            each for each in page.trials if all(getattr(each, name) == value for name, value in given.items())
        )
        return answer(replace(page, trials=trials))

    async def events(
        self, request: Request, job_id: str, after: Cursor = 0, types: EventTypes = frozenset()
    ) -> Response:
        """A page of the log; ``after`` is the event_id of the last one that is known. Filtered, it may be a short one.

        ``next_after`` is where the next page begins, null on the last; ``resume_after`` is the ``after`` with which a
        client asks later for what has come since.

        With ``Accept: text/event-stream`` all of it, and then each event as it comes.
        """
        _require_known(types)
        if _wants_stream(request):
            resumed = request.headers.get("last-event-id")
            return await self._live(request, PlaceInLog(job_id, after=after, last_event_id=resumed), types)
        place = PlaceInLog(job_id, after=after, last_event_id=None)
        page = await self._news(request, place)
        events = _messages(page, place, types)
        return answer({"events": events, "next_after": page.next_after, "resume_after": place.seen})

    async def events_of_jobs(
        self,
        request: Request,
        job_id: Annotated[frozenset[str], QueryParameter(max_length=queries.MOST_FOLLOWED, min_length=1)],
        after: str = "",
        types: EventTypes = frozenset(),
    ) -> Response:
        """A page of the logs of several jobs; ``after`` is the ``next_after`` of the page before, null on the last.

        With ``Accept: text/event-stream`` all of them, and then each event as it comes, those of a job in order.
        """
        _require_known(types)
        for each in job_id:
            _check("job_id", each)
        if _wants_stream(request):
            resumed = request.headers.get("last-event-id")
            return await self._live(request, PlacesInLogs(job_id, cursor=resumed or after), types)
        place = PlacesInLogs(job_id, cursor=after)
        page = await self._news(request, place)
        return answer({"events": _messages(page, place, types), "next_after": place.last_id or None})

    async def _news(self, request: Request, place: Place) -> queries.EventsPage:
        """The events after a place."""
        page = await self._ask(request, place.query, place.job_id)
        assert isinstance(page, queries.EventsPage)
        return page

    async def _live(self, request: Request, place: Place, types: Collection[str]) -> Response:
        """The events after a place, and then each as it comes."""
        token = token_of(request)
        user = None if token is None else token.user
        self._streams.take_place(user)
        try:
            first = await self._news(request, place)
        except BaseException:
            self._streams.leave(user)
            raise
        look = partial(self._later, request, place)
        stream = followed(look, first, place, types=types, until=self._gate.is_draining)
        return self._streams.answer(stream, user)

    async def _later(self, request: Request, place: Place) -> Page:
        """The events after a place, for a reader who still has the right."""
        request.scope.pop(UNTIL, None)
        if (recheck := request.scope.get(RECHECK)) is not None:
            request.scope[BEARER] = await recheck()
        return await self._ask(request, place.query, place.job_id)

    async def power_profiles(self, request: Request, job_id: str) -> Response:
        """All power profiles of a job."""
        return answer(await self._ask(request, queries.ListPowerProfiles(), job_id))

    async def _ask(self, request: Request, query: Query, job_id: str | None = None) -> Page:
        if job_id is not None:
            _check("job_id", job_id)
        page = await self._gate.ask(request, query, job_id)
        if isinstance(page, Problem):
            raise refused(page)
        _require_own_place(token_of(request), page)
        return page


def _require_plain_numbers(in_path: Mapping[str, str]) -> None:
    """Raise HttpError for a number in a path that is written in another way than all clients write it."""
    for name in _IN_PATHS:
        if name in in_path and _PLAIN_NUMBER.fullmatch(in_path[name]) is None:
            words = f"expected a whole number in decimal digits, got {in_path[name][:60]!r}"
            raise HttpError(422, f"{name}: {words}", kind="invalid_body", fields={name: words})


def _require_trial_id(command: Command) -> None:
    """Raise HttpError for a trial without its id, which workers accept from gateways, for Zeus' clients."""
    if getattr(command, "trial_id", None) == "":
        words = "has to be the id that the trial began with"
        raise HttpError(422, f"trial_id {words}", kind="invalid_body", fields={"trial_id": words})


async def _require_known_parameters(request: Request) -> None:
    """Raise HttpError for a part of a query that no route knows, or that says one thing twice."""
    known = {each.alias for each in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            words = f"is not known here; known are {', '.join(sorted(known)) or 'none'}"
        elif name not in _SEVERAL and len(request.query_params.getlist(name)) > 1:
            words = "may be given once"
        elif len(given := request.query_params.getlist(name)) > len(set(given)):
            words = "may name each once"
        else:
            continue
        raise HttpError(422, f"query: {name[:60]} {words}", kind="invalid_query", fields={f"query.{name[:60]}": words})


def _require_own_place(token: Token | None, page: Page | Problem) -> None:
    """Raise HttpError for a page of jobs whose place names one that the token is not for: none was found in time."""
    if token is None or not isinstance(page, queries.JobsPage | queries.SavingsPage) or page.next_after is None:
        return
    if not token.covers(Right.READ, page.next_after):
        words = f"no job like {token.jobs} was found in time: it takes a pattern that begins as their names do"
        raise HttpError(400, words, kind="too_many_jobs", title="The jobs are too many for this token")


def _wants_stream(request: Request) -> bool:
    return STREAM in request.headers.get("accept", "")


def _require_known(types: Collection[str]) -> None:
    """Raise HttpError for a type that no event has."""
    known = all_events()
    if unknown := sorted(each for each in types if each not in known):
        words = f"no event is of type {unknown[0][:60]!r}; known are {', '.join(sorted(known))}"
        raise HttpError(422, words, kind="invalid_query", fields={"query.type": words})


def _messages(page: queries.EventsPage, place: Place, types: Collection[str]) -> Sequence[Mapping[str, Any]]:
    return [event for _, event in passed(page, place, types=types)]


def _as_message(body: bytes) -> Response:
    return Response(body, 200, {"Cache-Control": "no-store"}, media_type="application/json")


def _listed(one: JobOverview) -> dict[str, Any]:
    summary = one.summary
    return {
        "job_id": summary.job_id,
        "owner": summary.owner,
        "version_number": summary.version_number,
        "policy": summary.policy,
        "spec": from_json(summary.spec),
        "trials": summary.last_trial_number,
        "created_at": summary.created_at,
        "changed_at": summary.changed_at,
        "last_trial": one.last_trial,
    }


def _known_id(after: str) -> str:
    """Where a page of jobs begins: after a job_id, or with the first one. Raises HttpError."""
    if after and (problem := identifier_problem(after)) is not None:
        raise HttpError(422, f"query: after {problem}", kind="invalid_query", fields={"query.after": problem})
    return after


def _check(name: str, value: object) -> None:
    if (problem := identifier_problem(value)) is not None:
        raise HttpError(422, f"{name} {problem}", kind="invalid_identifier", fields={name: problem})
