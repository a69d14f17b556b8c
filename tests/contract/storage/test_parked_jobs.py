"""Jobs whose commands cannot be decided for now: what is recorded of them, and which of them others wait for."""

import pytest
from sqlalchemy import select

from bso.domain.decide import Rules
from bso.domain.errors import Misconfigured, Retryable
from bso.domain.replies import TrialBegun
from bso.service.answers import Answer, Undecided
from bso.service.engine import Engine, Patience
from bso.service.errors import Conflict, JobDamaged
from bso.service.ports import Store
from bso.service.records import ChangeSet, JobChange
from bso.storage import SqlStore, open_store
from bso.storage.connections import ConnectionLimits
from bso.storage.tables import event, job, trial
from tests.contract.storage.conftest import OpenStore
from tests.contract.storage.job_requests import JOB, ask, assert_log_equals_tables, begin, beginning, registration
from tests.servers.fixtures import DATABASES
from tests.servers.sql import execute

LAPSES_AT_ONCE = Rules(lease_s=1e-6)


async def test_a_job_is_parked_until_it_recovers(store: Store) -> None:
    parked = store.parked_jobs
    assert await parked.all() == []
    await parked.park(JOB, reason="its row is locked", pause_s=5.0)
    await parked.park("other", reason="damaged", pause_s=5.0)
    await parked.park(JOB, reason="its row is still locked", pause_s=60.0)
    first, other = await parked.all()
    assert (first.job_id, first.reason, other.job_id) == (JOB, "its row is still locked", "other")
    assert first.parked_at <= other.parked_at, "the first time counts"
    assert first.retry_at > other.retry_at
    await parked.recover([JOB, "never-parked"])
    assert [one.job_id for one in await parked.all()] == ["other"]
    await parked.park(JOB, reason="again", pause_s=5.0)
    assert [one.job_id for one in await parked.all()] == ["other", JOB]


async def test_leases_of_a_parked_job_lapse_only_a_lease_after_it_has_recovered(store: Store) -> None:
    engine = Engine(store, LAPSES_AT_ONCE)
    for job_id in (JOB, "other"):
        await ask(engine, registration(job_id), beginning(job_id=job_id))
    assert {lease.job_id for lease in await store.lapsed_leases()} == {JOB, "other"}
    await store.parked_jobs.park(JOB, reason="its row is locked", pause_s=5.0)
    assert {lease.job_id for lease in await store.lapsed_leases()} == {"other"}
    await store.parked_jobs.recover([JOB])
    await store.parked_jobs.forget_recovered(older_than_s=3600.0)
    assert {lease.job_id for lease in await store.lapsed_leases()} == {"other"}
    await store.parked_jobs.forget_recovered(older_than_s=0.0)
    assert {lease.job_id for lease in await store.lapsed_leases()} == {JOB, "other"}


async def test_a_store_that_can_be_written_says_so_and_keeps_nothing(store: Store) -> None:
    await store.parked_jobs.try_writing()
    assert await store.parked_jobs.all() == []
    assert await store.jobs() == []
    assert await store.history() == []


@pytest.mark.parametrize("column", ["event.payload", "job.last_seq", "trial.reason", "parked_job.reason"])
@pytest.mark.parametrize("database_url", DATABASES, indirect=True)
async def test_a_store_that_refuses_rows_of_one_table_cannot_be_written(store: Store, column: str) -> None:
    assert isinstance(store, SqlStore)
    table, name = column.split(".")
    await execute(store, f"ALTER TABLE {table} RENAME COLUMN {name} TO lost")
    with pytest.raises((Retryable, Misconfigured)):
        await store.parked_jobs.try_writing()


@pytest.mark.parametrize("database_url", [kind for kind in DATABASES if kind != "sqlite"], indirect=True)
async def test_a_store_can_be_written_where_others_hold_the_rows_of_a_job(
    open_another: OpenStore, database_url: str
) -> None:
    """On MySQL and MariaDB their locks cover the gaps on both sides, in which the trial of no job would stand, too."""
    store, rival = open_store(database_url, limits=ConnectionLimits(lock_wait_s=1.0)), open_another()
    assert isinstance(rival, SqlStore)
    await ask(Engine(store), registration(), beginning())
    async with rival.engine.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ")
        for table in (trial, event, job):
            await connection.execute(select(table).where(table.c.job_id >= "").with_for_update())
        await store.parked_jobs.try_writing()
    await store.close()


@pytest.mark.parametrize("database_url", [kind for kind in DATABASES if kind != "sqlite"], indirect=True)
async def test_nobody_waits_for_a_job_that_another_transaction_holds(open_another: OpenStore) -> None:
    store, rival = open_another(), open_another()
    await ask(Engine(store), registration(), registration("free"))
    async with rival.unit_of_work() as uow:
        await uow.lock([JOB], creating=())
        asked = [beginning(), beginning(job_id="free"), registration(), registration("new")]
        answers = await Engine(store).attempt(asked)
        busy = [answer.request.job_id for answer in answers if isinstance(answer, Undecided)]
        assert busy == [JOB, JOB]
        assert all(isinstance(answer.cause, Conflict) for answer in answers if isinstance(answer, Undecided))
    [begun, _] = await Engine(store).attempt([asked[0], asked[2]])
    assert isinstance(begun, Answer)
    assert isinstance(begun.reply, TrialBegun)
    assert begun.reply.trial_number == 1
    for job_id in (JOB, "free", "new"):
        await assert_log_equals_tables(store, job_id)


@pytest.mark.parametrize("database_url", [kind for kind in DATABASES if kind != "sqlite"], indirect=True)
async def test_locks_on_rows_of_trials_are_seen_beside_the_lock_of_the_job(open_another: OpenStore) -> None:
    store, rival = open_another(), open_another()
    assert isinstance(rival, SqlStore)
    await ask(Engine(store), registration(), beginning(), registration("free"), beginning(job_id="free"))
    await ask(Engine(store), registration("untrained"))
    jobs = (JOB, "free", "untrained", "unknown")
    async with rival.engine.connect() as connection:
        await connection.execute(select(trial).where(trial.c.job_id == JOB).with_for_update())
        assert set(await store.parked_jobs.locked(jobs)) == {JOB}
        await ask(Engine(store), beginning(job_id="free"))
    assert not await store.parked_jobs.locked(jobs)


async def test_a_job_whose_row_is_behind_its_log_is_damaged(store: Store) -> None:
    engine = Engine(store, patience=Patience(total_s=5.0))
    await ask(engine, registration(), registration("healthy"))
    await begin(engine)
    async with store.unit_of_work() as uow:
        stored = (await uow.lock([JOB], creating=()))[JOB]
        now = (await uow.recollect(())).now
        await uow.commit(
            ChangeSet(
                now=now, jobs=(JobChange(job_id=JOB, last_seq=stored.last_seq - 1, revision=stored.revision + 1),)
            )
        )
    if isinstance(store, SqlStore):  # a dictionary has no unique keys
        with pytest.raises(JobDamaged, match="contradict"):
            await engine.execute([beginning()])
    [answer] = await engine.execute([beginning(job_id="healthy")])
    assert isinstance(answer.reply, TrialBegun)
