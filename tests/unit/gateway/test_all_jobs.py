"""All jobs of a reader, as pages read them."""

from typing import cast

import pytest
from starlette.requests import Request

from bso.domain.replies import Problem
from bso.service.queries import JobsPage, Page, Query
from bso_gateway.http import Gate, HttpError
from bso_gateway.pages.all_jobs import JobsReader, ordered
from tests.unit.drawing.samples import arm, kind
from tests.unit.service.test_listed_jobs import listed


class OneJob:
    """In place of a gate: an optimizer that knows one job."""

    is_away = False

    async def ask(self, request: Request, query: Query, job_id: str | None = None) -> Page | Problem:
        if self.is_away:
            raise HttpError(503, "nobody answers", kind="unreachable")
        return JobsPage(jobs=(listed(None).overview,), parked=(), next_after=None)


def request() -> Request:
    return Request({"type": "http", "headers": []})


async def test_what_a_page_has_is_its_own() -> None:
    reader = JobsReader(cast(Gate, OneJob()))
    found = await reader.jobs(request(), wait_s=60.0)
    assert (len(found.shown()), found.unreadable, found.is_complete) == (1, 1, True)
    reader.changed("job", is_deleted=True)
    assert len(found.shown()) == 1, "what a page has is its own"


async def test_while_the_optimizer_is_away_a_page_says_so() -> None:
    gate = OneJob()
    reader = JobsReader(cast(Gate, gate))
    assert (await reader.jobs(request(), wait_s=60.0)).is_complete
    gate.is_away = True
    reader.changed("job", is_deleted=False)  # it has to be read anew
    with pytest.raises(HttpError, match="nobody answers"):
        await reader.jobs(request(), wait_s=60.0)
    gate.is_away = False
    assert (await reader.jobs(request(), wait_s=60.0)).is_complete


def test_what_is_not_known_comes_last_in_both_directions() -> None:
    known, unknown = listed(kind(arm(64))), listed(None)
    for direction in ("", "-"):
        assert ordered([unknown, known], f"{direction}best")[-1] is unknown
