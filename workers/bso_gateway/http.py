"""What all routes share: bodies within limits, errors with a status, and calls of the optimizer with a deadline."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from bso.domain.commands import Command, DescribeJob
from bso.domain.commands import Request as CommandRequest
from bso.domain.replies import Problem, Reply
from bso.service.queries import Asked, Page
from bso_client.errors import Unreachable
from bso_gateway.optimizer import Optimizer

Model = TypeVar("Model", bound=BaseModel)

_RETRY_AFTER_S = 5


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
        return {} if self.retry_after_s is None else {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a request may bring, and how long it may take."""

    max_body_bytes: int
    body_timeout_s: float
    answer_timeout_s: float


class Gate:
    """The way from a request to the optimizer. Answers without an end, live events, end when it ``is_draining``."""

    def __init__(self, optimizer: Optimizer, limits: Limits, *, is_draining: asyncio.Event) -> None:
        self.optimizer = optimizer
        self.is_draining = is_draining
        self._limits = limits

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
            raise HttpError(408, words, kind="body_timeout") from error
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
        asked = CommandRequest(command_id=command_id, job_id=job_id, command=command)
        try:
            return await self.optimizer.call(asked, timeout_s=self._limits.answer_timeout_s)
        except Unreachable as error:
            raise HttpError(503, str(error), kind="unreachable", retry_after_s=_RETRY_AFTER_S) from error

    async def ask(self, asked: Asked) -> Page | Problem:
        """The answer to a query. Raises HttpError 503 when none came in time."""
        try:
            return await self.optimizer.query(asked, timeout_s=self._limits.answer_timeout_s)
        except Unreachable as error:
            raise HttpError(503, str(error), kind="unreachable", retry_after_s=_RETRY_AFTER_S) from error


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
    faults = error.errors(include_url=False, include_context=False)
    return {".".join(map(str, fault["loc"])): fault["msg"].removeprefix("Value error, ") for fault in faults}


def _too_large(most: int) -> HttpError:
    return HttpError(413, f"a body may have at most {most} bytes", kind="too_large")
