"""Pages of jobs as a token may see them: of the jobs that it is for alone, and with places that name no other."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from bso.domain.frozen_values import replace
from bso.domain.identifiers import identifier_problem
from bso.domain.replies import Problem
from bso.domain.rights import Right
from bso.domain.tokens import Token
from bso.service.queries import JobsPage, ListJobs, ListSavings, Page, SavingsPage

_Ask = Callable[[ListJobs | ListSavings], Awaitable[Page | Problem]]


async def covered(
    token: Token, query: ListJobs | ListSavings, ask: _Ask, *, is_time_up: Callable[[], bool]
) -> Page | Problem:
    """The next page that holds a job which the token is for; an empty one, the last, where there is no further one.

    Pages are in the order of ids: those before and after the beginning of the token's pattern are not read. Where time
    is up before such a job is found, an empty page holds the place so far, which names a job that the token is not for.
    """
    beginning = _beginning(token.jobs)
    after = max(query.after, beginning[:-1])
    while True:
        page = await ask(replace(query, after=after))
        if not isinstance(page, JobsPage | SavingsPage):
            return page
        seen, last = _seen(token, page)
        following = page.next_after
        if following is None or (following > beginning and not following.startswith(beginning)):
            return replace(seen, next_after=None)
        if last is not None or is_time_up():
            return replace(seen, next_after=last or following)
        after = following


def _seen(token: Token, page: JobsPage | SavingsPage) -> tuple[JobsPage | SavingsPage, str | None]:
    """A page without the jobs that a token is not for, and the last one that is left."""
    if isinstance(page, JobsPage):
        jobs = tuple(each for each in page.jobs if token.covers(Right.READ, each.summary.job_id))
        names = [each.summary.job_id for each in jobs]
        parked = tuple(each for each in page.parked if each.job_id in names)
        return replace(page, jobs=jobs, parked=parked), max(names, default=None)
    savings = tuple(each for each in page.jobs if token.covers(Right.READ, each.job_id))
    unreadable = tuple(each for each in page.unreadable if token.covers(Right.READ, each))
    names = [*(each.job_id for each in savings), *unreadable]
    return replace(page, jobs=savings, unreadable=unreadable), max(names, default=None)


def _beginning(pattern: str) -> str:
    """How the id of each job begins that a pattern covers."""
    beginning = re.split(r"[*?[]", pattern, maxsplit=1)[0]
    while beginning and identifier_problem(beginning) is not None:
        beginning = beginning[:-1]
    return beginning
