"""Workers show what each job saved as metrics."""

from functools import partial

import pytest

from bso.domain.savings import total_saved
from bso.service.query_answers import savings_of
from bso.storage import SqlStore
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.processes import WorkerProcess
from tests.integration.workers.recurrences import Queue, new_job, recur, register


async def test_every_worker_shows_what_each_job_saved(ask: Queue, store: SqlStore, start_worker: StartWorker) -> None:
    workers = [start_worker(savings_interval_s=0.2) for _ in range(2)]
    for worker in workers:
        worker.ready()
    job_id = new_job()
    await register(ask, job_id)
    for number in range(3):
        await recur(ask, job_id, f"night-{number}")
    jobs, _ = savings_of(await store.overviews())
    [found] = [total_saved((job.job_id, one) for one in job.saved) for job in jobs if job.job_id == job_id]
    assert found.trials >= 3
    assert found.time_s is not None
    for worker in workers:
        worker.until(partial(_shows, worker, job_id, found.trials))
        assert worker.metric("bso_job_models", job_id=job_id) == found.models == 3
        assert worker.metric("bso_job_saved_seconds", job_id=job_id) == pytest.approx(found.time_s.value)


def _shows(worker: WorkerProcess, job_id: str, trials: int) -> bool:
    return worker.metric("bso_job_trials", job_id=job_id) == trials


@pytest.mark.usefixtures("migrated_url")
async def test_without_an_interval_no_worker_looks(ask: Queue, start_worker: StartWorker) -> None:
    worker = start_worker(savings_interval_s=0)
    worker.ready()
    job_id = new_job()
    await register(ask, job_id)
    await recur(ask, job_id, "night")
    assert "bso_job_trials{" not in worker.page("metrics")[1]
