"""One job is locked, damaged or unreadable: its own commands wait, and nobody else's."""

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from sqlalchemy import select

from bso.domain.commands import BeginTrial
from bso.domain.decide import Rules
from bso.domain.replies import EpochJudged, Problem, TrialBegun
from bso.replay.rebuild import rebuild
from bso.storage import SqlStore, open_store
from bso.storage.connections import PATIENT
from bso.storage.tables import trial
from bso_broker.rabbit import RabbitBroker
from tests.faults.test_worker_killed import CRASHING
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.processes import WorkerProcess
from tests.integration.workers.recurrences import HARDWARE, Load, Queue, audit, begin, new_job, register, report
from tests.servers import eventually_async
from tests.servers.sql import execute


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Two workers, a job that is harmed, and one that is not; each has a trial."""

    workers: tuple[WorkerProcess, WorkerProcess]
    harmed: str
    trial: TrialBegun
    healthy: str

    def parked(self) -> float:
        return sum(worker.metric("bso_parked_jobs") for worker in self.workers)

    def dead_letters(self) -> float:
        return sum(worker.metric("bso_dead_letters_total") for worker in self.workers)


@pytest.fixture
async def scene(store: SqlStore, ask: Queue, start_worker: StartWorker) -> AsyncIterator[Scene]:
    workers = (start_worker(relay_age_s=0.5).ready(), start_worker(relay_age_s=0.5).ready())
    harmed, healthy = new_job(), new_job()
    for job in (harmed, healthy):
        await register(ask, job)
    trial = await begin(ask, harmed)
    yield Scene(workers=workers, harmed=harmed, trial=trial, healthy=healthy)
    assert all(worker.process.poll() is None for worker in workers), "nothing crashed"
    assert all(worker.page("readyz")[0] == 200 for worker in workers)


@pytest.fixture
async def others(migrated_url: str) -> AsyncIterator[SqlStore]:
    """Sessions of somebody else, who may be silent for long."""
    store = open_store(migrated_url, limits=PATIENT)
    yield store
    await store.close()


@pytest.mark.slow
async def test_a_job_whose_row_somebody_holds(scene: Scene, store: SqlStore, others: SqlStore, ask: Queue) -> None:
    command_id = str(uuid.uuid4())
    async with others.unit_of_work() as foreign, Load(ask=ask, job_id=scene.healthy) as load:
        await foreign.lock([scene.harmed], creating=())
        kept = await ask(scene.harmed, report(scene.trial, 1), command_id=command_id)
        declined = await ask(scene.harmed, BeginTrial(hardware=HARDWARE))
        assert [parked.job_id for parked in await store.parked_jobs.all()] == [scene.harmed]
        await load.progress(10)
    assert isinstance(kept, Problem)
    assert isinstance(declined, Problem)
    assert (kept.type, declined.type) == ("kept", "job_in_trouble")
    assert kept.is_retryable
    assert declined.is_retryable
    await eventually_async(lambda: _reports(store, scene), what="the report that was kept")
    await eventually_async(lambda: _begun(ask, scene.harmed), what="a trial of the job that has recovered")
    await eventually_async(lambda: _nothing_parked(store), what="the job's recovery")
    assert await audit(store, scene.harmed) == 2
    assert await audit(store, scene.healthy) == load.trials
    assert scene.dead_letters() == 0


@pytest.mark.slow
async def test_a_job_of_whose_trials_somebody_holds_rows(
    scene: Scene, store: SqlStore, others: SqlStore, ask: Queue
) -> None:
    """The lock of the job itself is free: only writing would wait, and with it all commands of the batch."""
    async with others.engine.connect() as foreign, Load(ask=ask, job_id=scene.healthy) as load:
        await foreign.execute(select(trial).where(trial.c.job_id == scene.harmed).with_for_update())
        kept = await ask(scene.harmed, report(scene.trial, 1))
        assert isinstance(kept, Problem)
        assert kept.type == "kept"
        [first] = await store.parked_jobs.all()

        async def is_tried_again() -> bool:
            [now] = await store.parked_jobs.all()
            return now.retry_at > first.retry_at

        await eventually_async(is_tried_again, what="another try of the parked job")
        await load.progress(50)
        [now] = await store.parked_jobs.all()
        assert (now.job_id, now.parked_at) == (scene.harmed, first.parked_at), "it has not recovered in between"
    await eventually_async(lambda: _reports(store, scene), what="the report that was kept")
    await eventually_async(lambda: _nothing_parked(store), what="the job's recovery")
    assert await audit(store, scene.harmed) == 1
    assert await audit(store, scene.healthy) == load.trials
    assert scene.dead_letters() == 0


@pytest.mark.slow
async def test_a_job_recovers_although_no_command_comes_for_it(
    scene: Scene, store: SqlStore, others: SqlStore, ask: Queue
) -> None:
    async with others.unit_of_work() as foreign:
        await foreign.lock([scene.harmed], creating=())
        declined = await ask(scene.harmed, BeginTrial(hardware=HARDWARE))
        assert [parked.job_id for parked in await store.parked_jobs.all()] == [scene.harmed]
    assert isinstance(declined, Problem)
    await eventually_async(lambda: _nothing_parked(store), what="the job's recovery")
    await eventually_async(lambda: scene.parked() == 0, what="that every worker knows of it")
    assert not any(worker.lines("unforeseen_error") for worker in scene.workers)


@pytest.mark.slow
async def test_a_worker_dies_between_parking_a_command_and_acknowledging_it(
    store: SqlStore, others: SqlStore, ask: Queue, start_worker: StartWorker
) -> None:
    """The command then lies in a parking queue and comes again as well: it is decided once."""
    doomed = start_worker(program=(CRASHING, "after_parking")).ready()
    job = new_job()
    await register(ask, job)
    trial = await begin(ask, job)
    async with others.unit_of_work() as foreign:
        await foreign.lock([job], creating=())
        pending = asyncio.create_task(ask(job, report(trial, 1)))
        assert await asyncio.to_thread(doomed.wait) == -signal.SIGKILL
    heir = start_worker().ready()
    assert isinstance(await pending, EpochJudged)
    await eventually_async(lambda: heir.metric("bso_commands_total", type="report_epoch") >= 2, what="the second copy")
    assert heir.metric("bso_commands_total", type="report_epoch", result="decided") == 1  # the client may ask again
    assert (await store.trials(job))[0].reports == 1
    assert await audit(store, job) == 1
    assert heir.metric("bso_dead_letters_total") == 0


_READ_AGAIN = "UPDATE job SET revision = revision + 1 WHERE job_id = '{job}'"
_ZERO_DATE = (
    "SET sql_mode = ''; UPDATE trial SET lease_expires_at = '0000-00-00' WHERE job_id = '{job}'; SET sql_mode = DEFAULT"
)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE job SET revision = revision + 1, last_seq = last_seq - 1 WHERE job_id = '{job}'",
        pytest.param("DELETE FROM job WHERE job_id = '{job}'", marks=pytest.mark.slow),
        pytest.param(
            "UPDATE job SET revision = revision + 1, state = '[' WHERE job_id = '{job}'", marks=pytest.mark.slow
        ),
        pytest.param(
            "UPDATE trial SET energy_method = 'nonsense', lease_expires_at = '2000-01-01' WHERE job_id = '{job}'",
            marks=pytest.mark.slow,
        ),
        pytest.param(_ZERO_DATE, marks=pytest.mark.slow),
    ],
    ids=["behind its log", "missing", "unreadable", "a lapsed trial unreadable", "a lease without a moment"],
)
async def test_a_job_whose_row_is_damaged(scene: Scene, store: SqlStore, ask: Queue, damage: str) -> None:
    await execute(store, *f"{damage}; {_READ_AGAIN}".format(job=scene.harmed).split("; "))
    answer = await ask(scene.harmed, report(scene.trial, 1))
    assert isinstance(answer, Problem)
    assert answer.type == "kept"
    async with Load(ask=ask, job_id=scene.healthy) as load:
        with pytest.raises(AssertionError, match="job_in_trouble"):
            await begin(ask, scene.harmed)
        if "DELETE" in damage:  # what is missing is not unknown
            with pytest.raises(AssertionError, match="job_in_trouble"):
                await register(ask, scene.harmed)
        await load.progress(10)
    (parked,) = await store.parked_jobs.all()
    assert parked.job_id == scene.harmed
    assert not any(worker.lines("reaper_poison") for worker in scene.workers)
    lines = [line for worker in scene.workers for line in worker.lines("job_parked")]
    assert f"bso replay rebuild {scene.harmed}" in lines[0]["remedy"] or "upgrade" in lines[0]["reason"]
    await rebuild(store, scene.harmed, rules=Rules())
    assert await _nothing_parked(store)
    await eventually_async(lambda: _begun(ask, scene.harmed), what="a trial of the job that was mended")
    await eventually_async(lambda: _nothing_parked(store), what="the job's recovery")
    assert await audit(store, scene.healthy) == load.trials
    await audit(store, scene.harmed)
    assert scene.dead_letters() == 0


@pytest.mark.slow
async def test_a_report_parked_for_longer_than_the_limit_is_a_dead_letter_and_is_recorded_when_requeued(
    amqp_url: str, store: SqlStore, ask: Queue, start_worker: StartWorker
) -> None:
    worker = start_worker(park_limit_s=4.0).ready()  # it comes back after 5 s
    job = new_job()
    await register(ask, job)
    trial = await begin(ask, job)
    await execute(store, f"UPDATE job SET revision = revision + 1, state = '[' WHERE job_id = '{job}'")
    kept = await ask(job, report(trial, 1))
    assert isinstance(kept, Problem)
    assert kept.type == "kept"
    await eventually_async(
        lambda: worker.metric("bso_dead_letters_total", reason="park_limit") == 1, what="a dead letter"
    )
    await rebuild(store, job, rules=Rules())
    await eventually_async(lambda: _begun(ask, job), what="a trial of the job that was mended")
    assert (await store.trials(job))[0].reports == 0
    async with RabbitBroker(amqp_url).dead_letters() as box:
        (letter,) = await box.peek()
        assert letter.reason == "park_limit: its job was in trouble for 4 s"
        assert letter.user_id == "guest"
        assert await box.requeue() == 1
    await eventually_async(lambda: _has_report(store, job), what="the report that was requeued")
    assert await audit(store, job) == 2


@pytest.mark.slow
async def test_events_that_cannot_be_read_keep_no_others_from_being_relayed(
    scene: Scene, store: SqlStore, ask: Queue
) -> None:
    await execute(store, f"UPDATE event SET payload = '[', published_at = NULL WHERE job_id = '{scene.harmed}'")
    await execute(store, f"UPDATE event SET published_at = NULL WHERE job_id = '{scene.healthy}'")
    await eventually_async(lambda: _all_published(store), what="the relay of what can be read")


async def _all_published(store: SqlStore) -> bool:
    return not (await store.unpublished(older_than_s=0.0)).events


@pytest.mark.slow
async def test_a_hot_job_under_three_workers_starves_nobody(
    scene: Scene, store: SqlStore, ask: Queue, start_worker: StartWorker
) -> None:
    start_worker().ready()
    async with Load(ask=ask, job_id=scene.healthy, at_once=16) as load, Load(ask=ask, job_id=scene.harmed) as other:
        await asyncio.gather(load.progress(60), other.progress(20))
    assert await store.parked_jobs.all() == []
    assert await audit(store, scene.healthy) == load.trials
    assert await audit(store, scene.harmed) == other.trials + 1


async def _reports(store: SqlStore, scene: Scene) -> bool:
    return await _has_report(store, scene.harmed)


async def _has_report(store: SqlStore, job: str) -> bool:
    return (await store.trials(job))[0].reports == 1


async def _nothing_parked(store: SqlStore) -> bool:
    return not await store.parked_jobs.all()


async def _begun(ask: Queue, job_id: str) -> bool:
    return isinstance(await ask(job_id, BeginTrial(hardware=HARDWARE)), TrialBegun)
