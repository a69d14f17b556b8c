"""Pages of jobs for a token that is for some of them."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from bso.domain.replies import Problem
from bso.domain.rights import Right
from bso.domain.tokens import Token
from bso.service.queries import JobSavings, ListJobs, ListSavings, Page, SavingsPage
from bso_gateway.covered_jobs import covered

NAMES = (*(f"a{number:02}" for number in range(40)), "vision-1", "vision-2", *(f"z{number:02}" for number in range(40)))


class Store:
    """Lists the jobs, three on a page."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, query: ListJobs | ListSavings) -> Page | Problem:
        self.asked.append(query.after)
        left = [name for name in NAMES if name > query.after]
        jobs = tuple(JobSavings(job_id=name, saved=()) for name in left[:3])
        return SavingsPage(jobs=jobs, next_after=left[2] if len(left) > 3 else None)


async def listed(store: Store, pattern: str, *, looks: int = 100) -> tuple[Sequence[str], str | None]:
    """The jobs of the first page, and where the next one begins; time is up after so many looks at pages."""
    token = Token(
        token_id="0" * 12, user="ann", right=Right.READ, jobs=pattern, created_at=datetime(2026, 1, 1, tzinfo=UTC)
    )
    page = await covered(token, ListSavings(), store.ask, is_time_up=lambda: len(store.asked) >= looks)
    assert isinstance(page, SavingsPage)
    return [one.job_id for one in page.jobs], page.next_after


async def test_only_the_part_of_the_list_is_read_in_which_a_pattern_can_match() -> None:
    store = Store()
    assert await listed(store, "vision-*") == (["vision-1", "vision-2"], None)
    assert store.asked == ["vision"]


@pytest.mark.parametrize("pattern", ["*-2", "[v]ision-2"])
async def test_a_pattern_that_begins_with_anything_reads_on_until_it_matches(pattern: str) -> None:
    assert await listed(Store(), pattern) == (["vision-2"], "vision-2")


async def test_where_time_is_up_an_empty_page_says_how_far_it_came() -> None:
    store = Store()
    assert await listed(store, "*-2", looks=3) == ([], "a08")
    assert store.asked == ["", "a02", "a05"]


async def test_a_pattern_that_nothing_matches_has_one_empty_page() -> None:
    assert await listed(Store(), "*-3") == ([], None)
