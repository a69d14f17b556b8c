"""Which jobs a login finds that it may read, by every way to be allowed to."""

import pytest

from bso.domain.commands import GrantJob, RegisterJob
from bso.domain.decide import Rules, lacking
from bso.domain.rights import Reader, Right
from bso.service.engine import Engine
from bso.service.ports import Store
from bso.service.queries import Asked, JobsPage, ListJobs, decode_page
from bso.service.query_answers import answered
from bso.service.serialization import MOST_GRANTED, read_snapshot
from tests.contract.storage.job_requests import SPEC, ask, request

RULES = Rules(teams=frozenset({"vision", "vision-lab", "nlp"}), operators=frozenset({"root"}))
OWNERS = (None, "alice", "vision", "vision-ann", "vision-lab-bob", "vision_ann", "Vision-carl")
NAMES = ("job", "vision", "vision-job", "vision-lab-job", "visionary", "Vision-job", "nlp-job")
GRANTED = {"job-1": ['o"bob'], "job-3": ["do%a", "élise"], "job-5": [f"login-{n:070}" for n in range(10)]}
READERS = ("alice", "vision", "vision-ann", "vision-lab-bob", "vision_ann", "Vision-carl", "nlp-dan")
BY_GRANTS = ('o"bob', "bob", "do%a", "dora", "élise", f"login-{7:070}", "login-7")


async def registered(store: Store) -> None:
    """A job of every name and owner, some of them granted."""
    engine = Engine(store)
    jobs = {f"{name}-{number}": owner for name in NAMES for number, owner in enumerate(OWNERS)}
    asked = [request(RegisterJob(spec=SPEC), job_id=job_id, user=owner) for job_id, owner in jobs.items()]
    for start in range(0, len(asked), 20):
        await ask(engine, *asked[start : start + 20])
    for job_id, logins in GRANTED.items():
        await ask(engine, *(request(GrantJob(login=login, right=Right.READ), job_id=job_id) for login in logins))


async def listed(store: Store, login: str) -> tuple[list[str], int]:
    """The ids of the jobs that a login is shown, and in how many pages."""
    found: list[str] = []
    pages, after = 0, ""
    while True:
        message = await answered(store, Asked(query=ListJobs(after=after), query_id="x", user=login), rules=RULES)
        page = decode_page(message)
        assert isinstance(page, JobsPage)
        found += [one.summary.job_id for one in page.jobs]
        pages += 1
        if page.next_after is None:
            return found, pages
        after = page.next_after


async def test_a_login_finds_all_jobs_that_it_may_read_and_no_other(store: Store) -> None:
    await registered(store)
    jobs = [read_snapshot(one.stored) for one in await store.overviews()]
    assert len(jobs) == len(NAMES) * len(OWNERS)
    for login in (*READERS, *BY_GRANTS, "root"):
        may_read = [job.job_id for job in jobs if lacking(job, Right.READ, user=login, rules=RULES) is None]
        found, pages = await listed(store, login)
        assert found == may_read, login
        assert pages <= len(may_read) // 10 + 2, login


@pytest.mark.parametrize(("login", "count"), [("élise", 1), ("login-7", 0), ("elise", 0)])
async def test_a_job_that_is_granted_is_found_by_its_row(store: Store, login: str, count: int) -> None:
    await registered(store)
    reader = Reader(login=login, teams=RULES.teams)
    nobodys = [one for one in await store.jobs(reader=reader) if one.owner is not None and one.job_id != "job-5"]
    assert len(nobodys) == count
    assert len(str(GRANTED["job-5"])) > MOST_GRANTED, "of job-5 only its state says to whom it is granted"


async def test_what_is_taken_away_is_not_found_any_more(store: Store) -> None:
    engine = Engine(store)
    await ask(engine, request(RegisterJob(spec=SPEC), job_id="job", user="alice"))
    for right, expected in ((Right.READ, ["job"]), (None, [])):
        await ask(engine, request(GrantJob(login="bob", right=right), job_id="job"))
        reader = Reader(login="bob", teams=frozenset())
        assert [one.job_id for one in await store.jobs(reader=reader)] == expected
