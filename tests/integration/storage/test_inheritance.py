"""A job that another one inherits from is read without a lock: on real servers, while others hold it."""

import asyncio

from bso.domain.replies import Registered
from bso.service.answers import Answer
from bso.service.engine import Engine, Patience
from bso_migrations import upgrade
from tests.contract.storage.doubles import HeldCommit, SteppedStore
from tests.contract.storage.job_requests import ask, assert_log_equals_tables, begin, beginning, registration
from tests.contract.storage.siblings import BEST, KNOWN, NEW, converged, inherited, like, trained
from tests.integration.storage.conftest import OpenAt
from tests.servers import PATIENCE_S

ONCE = Patience(attempts=1)
"""A deadlock, or a wait for a lock that ends, is an error then."""


async def test_a_job_that_another_transaction_holds_is_inherited_from_as_it_was_committed(
    server_url: str, open_at: OpenAt
) -> None:
    await upgrade(server_url)
    store, held = open_at(server_url), HeldCommit()
    await trained(Engine(store))
    holding = asyncio.create_task(
        Engine(SteppedStore(open_at(server_url), held), patience=ONCE).execute([beginning(KNOWN)])
    )
    await held.arrived.wait()
    async with asyncio.timeout(PATIENCE_S):
        [registered] = await ask(Engine(store, patience=ONCE), like())
    assert not holding.done(), "the other one still holds its job"
    assert isinstance(registered.reply, Registered)
    assert registered.reply.warnings == ()
    assert (await begin(Engine(store), NEW)).batch_size == BEST
    held.let_go.set()
    assert [answer.poison for answer in await holding] == [None]
    for job_id in (KNOWN, NEW):
        await assert_log_equals_tables(store, job_id)


async def test_two_jobs_that_name_each_other_at_once_wait_for_nobody(server_url: str, open_at: OpenAt) -> None:
    await upgrade(server_url)
    store = open_at(server_url)
    for job_id in (KNOWN, NEW):
        await trained(Engine(store), job_id, recurrences=2)
    steps = [HeldCommit(), HeldCommit()]
    asked = [like(NEW, KNOWN, version="v2"), like(KNOWN, NEW, version="v2")]
    both = [
        asyncio.create_task(Engine(SteppedStore(open_at(server_url), step), patience=ONCE).execute([one]))
        for step, one in zip(steps, asked, strict=True)
    ]
    async with asyncio.timeout(PATIENCE_S):
        for step in steps:
            await step.arrived.wait()  # each has decided while the other one holds its lock
        for step in steps:
            step.let_go.set()
        answers: list[list[Answer]] = await asyncio.gather(*both)
    for [answer], name in zip(answers, (KNOWN, NEW), strict=True):
        assert isinstance(answer.reply, Registered)
        assert f"starts with the knowledge of job {name}" in " ".join(answer.reply.warnings)
    for job_id in (KNOWN, NEW):
        assert await inherited(store, job_id) == [False, True]
        await assert_log_equals_tables(store, job_id)


async def test_jobs_that_name_each_other_are_registered_beside_their_trainings(
    server_url: str, open_at: OpenAt
) -> None:
    await upgrade(server_url)
    store = open_at(server_url)
    for job_id in (KNOWN, NEW):
        await ask(Engine(store), registration(job_id))
    engines = [Engine(open_at(server_url)) for _ in range(4)]

    async def live(engine: Engine, job_id: str, name: str, number: int) -> None:
        for version in range(4):
            await ask(engine, like(job_id, name, version=f"{number}-{version}"))
            await converged(engine, job_id, f"{number}-{version}")

    await asyncio.gather(
        *(live(engine, *((KNOWN, NEW) if n % 2 else (NEW, KNOWN)), n) for n, engine in enumerate(engines))
    )
    for job_id in (KNOWN, NEW):
        log = await assert_log_equals_tables(store, job_id)
        assert len(log.versions) == 9
