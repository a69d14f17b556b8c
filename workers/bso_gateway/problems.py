"""Errors as clients read them: as Zeus' server has them on its routes, else problem+json (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from bso.domain.replies import KEPT, Problem
from bso.schema.envelope import PROBLEM_URN
from bso_gateway.http import HttpError, answer
from bso_gateway.zeus_wire import error_response, is_zeus_path

_STATUS = {
    "unknown_job": 404,
    "unknown_trial": 404,
    "unknown_batch_size": 404,
    "unknown_hardware": 404,
    "not_owner": 403,
    "operators_only": 403,
    "over_quota": 429,
    "too_large": 413,
    "undecidable": 500,
    "reply_impossible": 500,
}
_CONFLICTS = (
    "job_conflict",
    "conflicting_report",
    "report_goes_backwards",
    "wrong_trial_id",
    "trial_ended",
    "command_id_taken",
)
PROBLEM_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "description": "Why a request has no effect (RFC 9457). `code` is one of docs/messages.md or docs/gateway.md.",
    "required": ["type", "title", "status", "detail", "code", "fields", "context", "retry_after_s"],
    "properties": {
        "type": {"type": "string", "description": f"{PROBLEM_URN}CODE"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What came, what was expected, what to do."},
        "code": {"type": "string"},
        "fields": {"type": "object", "additionalProperties": {"type": "string"}},
        "context": {"type": "object"},
        "retry_after_s": {"type": ["number", "null"], "description": "When it may succeed; null: never as it is."},
    },
}


def error_page(path: str, error: HttpError) -> Response:
    """The answer to a request of this path that failed."""
    return error_response(error) if is_zeus_path(path) else problem_response(error)


def refused(problem: Problem) -> HttpError:
    """A refusal as an error. One that is kept, and will be decided later, is accepted."""
    if problem.type == KEPT:
        status = 202
    elif problem.is_retryable:
        status = _STATUS.get(problem.type, 503)
    elif problem.type in _CONFLICTS:
        status = 409
    else:
        status = _STATUS.get(problem.type, 422 if problem.fields else 400)
    return HttpError(
        status,
        problem.detail,
        kind=problem.type,
        title=problem.title,
        fields=problem.fields,
        retry_after_s=problem.retry_after_s or (1.0 if problem.is_retryable else None),
        context=problem.context,
    )


def problem_response(error: HttpError) -> Response:
    """An error as application/problem+json (RFC 9457)."""
    body = {
        "type": f"{PROBLEM_URN}{error.kind}",
        "title": error.title,
        "status": error.status,
        "detail": error.message,
        "code": error.kind,
        "fields": error.fields,
        "context": error.context,
        "retry_after_s": error.retry_after_s,
    }
    shown = answer(body, status=error.status)
    shown.headers["content-type"] = "application/problem+json"
    shown.headers.update(error.headers)
    return shown
