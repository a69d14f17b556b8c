"""The past that the benchmark of long histories makes up."""

from pathlib import Path

import pytest

from bso.service.engine import Engine
from bso.storage import open_store
from bso_migrations import upgrade
from tests.benchmarks.engine import execute, new_lanes
from tests.benchmarks.growth import EVENTS_PER_TRIAL, age
from tests.benchmarks.lanes import batches

JOBS = 4


@pytest.mark.parametrize("history", [JOBS, 28, 40])
async def test_jobs_go_on_with_a_past_of_ended_trials(tmp_path: Path, history: int) -> None:
    url = f"sqlite:///{tmp_path}/bso.sqlite"
    await upgrade(url)
    store = open_store(url, has_outbox=False)
    try:
        engine = Engine(store)
        lanes = await new_lanes(engine, 2 * JOBS, jobs=JOBS)
        await execute(engine, batches(lanes, size=2 * JOBS, count=1))
        before = {job.job_id: len(await store.history(job.job_id)) for job in await store.jobs()}
        await age(store, history)
        await execute(engine, batches(lanes, size=2 * JOBS, count=2))
        assert len(before) == JOBS
        for job_id, events_before in before.items():
            trials = await store.trials(job_id)
            assert [trial.is_active for trial in trials].count(True) == 2
            assert len(trials) == 2 + history // JOBS
            assert len({trial.trial_id for trial in trials}) == len(trials)
            events = await store.history(job_id)
            assert [event.recorded.seq for event in events] == list(range(1, len(events) + 1))
            past, reports = history // JOBS * EVENTS_PER_TRIAL, 2 * 2
            assert len(events) == events_before + past + reports
    finally:
        await store.close()
