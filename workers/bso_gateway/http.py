"""What all routes share: bodies within limits, errors with a status, and calls of the optimizer with a deadline."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import tenacity
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from bso.domain.commands import Command, DescribeJob, RegisterJob
from bso.domain.commands import Request as CommandRequest
from bso.domain.decide.permissions import NEEDED
from bso.domain.errors import BsoError, Misconfigured, Rejected
from bso.domain.frozen_values import replace
from bso.domain.replies import Problem, Reply
from bso.domain.rights import Right
from bso.domain.tokens import ALL_JOBS, Token
from bso.schema.wrong_values import explained
from bso.service.queries import (
    Asked,
    CheckedToken,
    CheckToken,
    FollowJobs,
    ListJobs,
    ListSavings,
    Page,
    Query,
    ShowOperation,
)
from bso_gateway.covered_jobs import covered
from bso_gateway.optimizer import Optimizer

Model = TypeVar("Model", bound=BaseModel)

BEARER, RECHECK, UNTIL, ASKED = "bso.token", "bso.recheck", "bso.until", "bso.asked"
"""Where the ASGI scope of a request holds its token, how to check that again, until when the request may be answered,
and the command that it has become."""
IS_TOO_MANY = "bso.is_too_many"
"""And its state, whether it came on a connection more than this gateway serves."""
IDEMPOTENCY_KEY: Mapping[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "format": "uuid"},
    "description": "A request that is sent again with the same key gets the answer that it got first. Make a new UUID "
    "for each request: one with a used key is refused (409) where its job, its kind, its trial or its epoch differs, "
    "and else gets that first answer, whatever its body says.",
}
RETRY_AFTER: Mapping[str, Any] = {
    "schema": {"type": "integer"},
    "description": "With 429 and 503: after so many seconds the request may succeed.",
}
_TOO_LARGE, _TOO_SLOW = _WITHOUT_ITS_BODY = ("too_large", "body_timeout")
_RETRY_AFTER_S = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5  # before a query is sent again that had to wait
_MOST_LATENCIES = 1000
_LEAST_S = 0.5  # for an answer, whatever the check of a token and the body have taken
_LEAST_OF_ANOTHER_S = 0.05  # a command that nobody waits for must not begin a trial


class HttpError(Exception):
    """A request that is answered with an error. ``fields`` names what is wrong with its body or its query."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "bad_request",
        title: str = "The request cannot be answered",
        fields: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.title = title
        self.fields = dict(fields or {})
        self.context = dict(context or {})
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        named = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.kind in _WITHOUT_ITS_BODY:  # what still comes of it is not read
            named["Connection"] = "close"
        return named | (
            {} if self.retry_after_s is None else {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a request may bring, and how long it may take."""

    max_body_bytes: int
    body_timeout_s: float
    answer_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long the last commands waited for their replies; ``undecided`` of them got none."""

    count: int
    median_s: float
    p99_s: float
    undecided: int


@dataclass(frozen=True, slots=True)
class _UnderWay:
    asked: CommandRequest
    reply: asyncio.Future[Reply]


class Gate:
    """The way from a request to the optimizer. Answers without an end, live events, end when it ``is_draining``."""

    def __init__(self, optimizer: Optimizer, limits: Limits, *, is_draining: asyncio.Event) -> None:
        self.optimizer = optimizer
        self.is_draining = is_draining
        self._limits = limits
        self._under_way: dict[str, _UnderWay] = {}
        self._took_s: deque[tuple[float, bool]] = deque(maxlen=_MOST_LATENCIES)

    @property
    def latency(self) -> Latency | None:
        """How long the last decisions took; None: there was none."""
        if not self._took_s:
            return None
        took_s = sorted(each for each, _ in self._took_s)
        median_s, p99_s = (took_s[int(share * (len(took_s) - 1))] for share in (0.5, 0.99))
        undecided = sum(not is_decided for _, is_decided in self._took_s)
        return Latency(count=len(took_s), median_s=median_s, p99_s=p99_s, undecided=undecided)

    async def body(self, request: Request) -> bytes:
        """The body of a request. Raises HttpError: 413 too large, 408 too slow, 400 cut off."""
        most = self._limits.max_body_bytes
        if (declared := request.headers.get("content-length", "")).isdigit() and int(declared) > most:
            raise _too_large(most)
        parts: list[bytes] = []
        received = 0
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                async for part in request.stream():
                    received += len(part)
                    if received > most:
                        raise _too_large(most)
                    parts.append(part)
        except TimeoutError as error:
            words = f"the body did not arrive within {self._limits.body_timeout_s:g} s"
            raise HttpError(408, words, kind=_TOO_SLOW) from error
        except ClientDisconnect as error:
            raise HttpError(400, "the client has gone before its body arrived", kind="disconnected") from error
        return b"".join(parts)

    async def read(self, request: Request, model: type[Model]) -> Model:
        """The body of a request as a value. Raises HttpError: 422 names each field that is wrong."""
        try:
            return model.model_validate_json(await self.body(request))
        except ValidationError as error:
            raise HttpError(422, "the body is not as expected", kind="invalid_body", fields=faults_of(error)) from error

    async def call(self, request: Request, job_id: str, command: Command) -> Reply:
        """The reply to a command. Raises HttpError 503 when none came in time."""
        is_question = isinstance(command, DescribeJob)  # its reply is not kept under the client's key
        command_id = str(uuid.uuid4()) if is_question else command_id_of(request)
        return await self.decide(request, CommandRequest(command_id=command_id, job_id=job_id, command=command))

    async def decide(self, request: Request, asked: CommandRequest) -> Reply:
        """The same for a command that has its id."""
        token = token_of(request)
        check_right(token, NEEDED[type(asked.command)], asked.job_id)
        if isinstance(asked.command, RegisterJob) and asked.command.like is not None:
            check_right(token, Right.READ, asked.command.like)
        asked = replace(asked, on_behalf_of=None if token is None else token.user)
        timeout_s = self._time_left_s(request)
        request.scope[ASKED] = asked
        under_way = self._under_way.get(asked.command_id)
        if under_way is None:
            return await self._decided(asked, timeout_s)
        if not _is_repetition(asked, under_way.asked):
            words = f"another command with the id {asked.command_id} is under way: make a new UUID for each"
            raise HttpError(409, words, kind="command_id_taken")
        try:
            return await asyncio.wait_for(asyncio.shield(under_way.reply), timeout_s)
        except (BsoError, TimeoutError) as error:
            raise _failed(error) from error

    async def _decided(self, asked: CommandRequest, timeout_s: float) -> Reply:
        """The reply to a command, also for those who send it again meanwhile."""
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._under_way[asked.command_id] = _UnderWay(asked, reply)
        began_s, is_decided = asyncio.get_running_loop().time(), False
        try:
            reply.set_result(await self.optimizer.call(asked, timeout_s=timeout_s))
            is_decided = True
        except BsoError as error:
            reply.set_exception(error)
            reply.exception()  # nobody else may have asked
            raise _failed(error) from error
        finally:
            if not isinstance(asked.command, DescribeJob):
                self._took_s.append((asyncio.get_running_loop().time() - began_s, is_decided))
            reply.cancel()
            del self._under_way[asked.command_id]
        return reply.result()

    async def ask(self, request: Request, query: Query, job_id: str | None = None) -> Page | Problem:
        """The answer to a query. Raises HttpError 503 when none came in time, 403 where the token is not for it."""
        token = token_of(request)
        for named in query.after if isinstance(query, FollowJobs) else (job_id,):
            check_right(token, Right.READ, named)
        if isinstance(query, ShowOperation):
            check_operates_all(token)
        user = None if token is None else token.user
        asked = Asked(query=query, query_id=str(uuid.uuid4()), job_id=job_id, on_behalf_of=user)
        if token is None or token.jobs == ALL_JOBS or not isinstance(query, ListJobs | ListSavings):
            return await self._asked(asked, timeout_s=self._time_left_s(request))
        clock = asyncio.get_running_loop().time
        until_s = clock() + self._time_left_s(request)
        return await covered(
            token,
            query,
            lambda page: self._asked(replace(asked, query=page), timeout_s=max(_LEAST_S, until_s - clock())),
            is_time_up=lambda: clock() > until_s,
        )

    async def check(self, query: CheckToken) -> Token | None:
        """The token that a secret belongs to. Raises HttpError 503 when no answer came in time."""
        asked = Asked(query=query, query_id=str(uuid.uuid4()))
        page = await self._asked(asked, timeout_s=self._limits.answer_timeout_s / 2)
        if isinstance(page, CheckedToken):
            return page.token
        words = page.detail if isinstance(page, Problem) else "tokens cannot be checked"
        raise HttpError(503, words, kind="tokens_not_checked", retry_after_s=_RETRY_AFTER_S)

    def _time_left_s(self, request: Request) -> float:
        """How long an answer may still take: of all that a request waits for together. A stream begins anew.

        Raises HttpError 503 where the first command of a request has left no time for another one.
        """
        loop = asyncio.get_running_loop()
        until_s: float = request.scope.setdefault(UNTIL, loop.time() + self._limits.answer_timeout_s)
        left_s = until_s - loop.time()
        if ASKED not in request.scope:
            return max(_LEAST_S, left_s)
        if left_s < _LEAST_OF_ANOTHER_S:
            raise _failed(TimeoutError())
        return left_s

    async def _asked(self, asked: Asked, *, timeout_s: float) -> Page | Problem:
        """The answer to a query. All users of a gateway share its turn: where that is full, it is asked for again."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        asking_again = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_result(lambda answer: getattr(answer, "is_retryable", False)),
            stop=tenacity.stop_after_delay(timeout_s),
            wait=tenacity.wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
            retry_error_callback=lambda tries: tries.outcome.result() if tries.outcome else None,
        )
        try:
            page: Page | Problem = await asking_again(self._once, asked, deadline_s)
        except BsoError as error:
            raise _failed(error) from error
        return page

    async def _once(self, asked: Asked, deadline_s: float) -> Page | Problem:
        left_s = max(_LEAST_S, deadline_s - asyncio.get_running_loop().time())
        return await self.optimizer.query(replace(asked, query_id=str(uuid.uuid4())), timeout_s=left_s)


def _is_repetition(asked: CommandRequest, first: CommandRequest) -> bool:
    """Whether it is the same command of the same user; the id of a trace may differ."""
    return replace(asked, trace=first.trace) == first


def _failed(error: BsoError | TimeoutError) -> HttpError:
    """An optimizer that does not answer, does not let this gateway in, or gives an answer that cannot be read."""
    if isinstance(error, Rejected):
        return HttpError(502, str(error), kind="unreadable_answer", title="The optimizer's answer cannot be read")
    kind = "misconfigured" if isinstance(error, Misconfigured) else "unreachable"
    return HttpError(503, str(error) or "no answer came in time", kind=kind, retry_after_s=_RETRY_AFTER_S)


def token_of(request: Request) -> Token | None:
    """The token that a request came with; None: this gateway asks for none."""
    token: Token | None = request.scope.get(BEARER)
    return token


def check_right(token: Token | None, right: Right | None, job_id: str | None) -> None:
    """Raise HttpError 403 where a token is not for what takes this right (None: an owner's) with a job (None: any)."""
    if token is None or token.covers(right, job_id):
        return
    wanted = (right or Right.OPERATE).value
    words = (
        f"token {token.token_id} is for what takes the right to {token.right.value}, with jobs like {token.jobs}; "
        f"this takes the right to {wanted}{'' if job_id is None else f', with job {job_id}'}"
    )
    raise HttpError(403, words, kind="token_not_for_this", title="The token is not for this")


def operates_all(token: Token | None) -> bool:
    """Whether a token is for operating all jobs."""
    return token is None or (token.covers(Right.OPERATE, None) and token.jobs == ALL_JOBS)


def check_operates_all(token: Token | None) -> None:
    """Raise HttpError 403 where a token is not for operating all jobs: the answer names any of them."""
    check_right(token, Right.OPERATE, None)
    if token is not None and not operates_all(token):
        words = f"token {token.token_id} is for jobs like {token.jobs}; this takes one for all jobs"
        raise HttpError(403, words, kind="token_not_for_this", title="The token is not for this")


def command_id_of(request: Request) -> str:
    """The id under which a command is decided once: the client's Idempotency-Key, or a new one. Raises HttpError."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return str(uuid.uuid4())
    try:
        return str(uuid.UUID(key.strip('"')))
    except ValueError as error:
        words = f"Idempotency-Key must be a UUID, got {key[:60]!r}"
        raise HttpError(400, words, kind="invalid_idempotency_key") from error


def answer(value: Any, *, status: int = 200) -> Response:
    """A value as JSON, which nobody may keep."""
    body = to_json(value, inf_nan_mode="strings")
    return Response(body, status, {"Cache-Control": "no-store"}, media_type="application/json")


def faults_of(error: ValidationError) -> dict[str, str]:
    """What is wrong with a value, by field."""
    return {".".join(map(str, fault["loc"])): explained(fault) for fault in error.errors(include_url=False)}


def _too_large(most: int) -> HttpError:
    return HttpError(413, f"a body may have at most {most} bytes", kind=_TOO_LARGE)
