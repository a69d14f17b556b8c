"""How pages ask for what they show: by the queries that every client has, with the rights of the one who looks."""

from __future__ import annotations

from typing import TypeVar

from starlette.requests import Request

from bso.domain.replies import Problem
from bso.service.queries import Query
from bso_gateway.http import Gate
from bso_gateway.problems import refused

Answer = TypeVar("Answer")


async def ask(gate: Gate, request: Request, query: Query, kind: type[Answer], job_id: str | None = None) -> Answer:
    """The answer to a query. Raises HttpError where the optimizer does not answer, or not this reader."""
    page = await gate.ask(request, query, job_id)
    if isinstance(page, Problem):
        raise refused(page)
    assert isinstance(page, kind)
    return page
