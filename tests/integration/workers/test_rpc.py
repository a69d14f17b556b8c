"""A worker process between a real RabbitMQ and a real MariaDB."""

from bso.storage import SqlStore
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.recurrences import Queue, audit, begin, new_job, recur, register


async def test_a_trial_begins_through_the_queue(store: SqlStore, ask: Queue, start_worker: StartWorker) -> None:
    start_worker().ready()
    job = new_job()
    await register(ask, job)
    trial = await begin(ask, job, recurrence_id="monday")
    assert (trial.trial_number, trial.batch_size) == (1, 64)


async def test_a_recurrence_ends_with_a_model(store: SqlStore, ask: Queue, start_worker: StartWorker) -> None:
    worker = start_worker().ready()
    job = new_job()
    await register(ask, job)
    trials = await recur(ask, job, "monday")
    assert await audit(store, job) == len(trials)
    assert worker.metric("bso_commands_total", result="decided") > len(trials)
