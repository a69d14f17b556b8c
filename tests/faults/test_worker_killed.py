"""Workers that die by SIGKILL: their clients get the right answer all the same, once."""

import asyncio
import os
import signal
import uuid
from pathlib import Path

import pytest

from bso.domain.events import TrialStarted
from bso.storage import SqlStore
from bso_broker.addresses import event_pattern
from bso_broker.rabbit import RabbitBroker
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.recurrences import (
    Load,
    Queue,
    audit,
    begin,
    history,
    new_job,
    register,
    train,
)
from tests.servers import PATIENCE_S, eventually_async

CRASHING = str(Path(__file__).with_name("crashing_worker.py"))


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("before_commit", marks=pytest.mark.slow),
        "after_commit",
        pytest.param("after_reply", marks=pytest.mark.slow),
    ],
)
async def test_a_worker_that_dies_leaves_the_client_with_the_right_answer_once(
    store: SqlStore, ask: Queue, start_worker: StartWorker, point: str
) -> None:
    doomed = start_worker(program=(CRASHING, point)).ready()
    job, command_id = new_job(), str(uuid.uuid4())
    await register(ask, job)
    pending = asyncio.create_task(begin(ask, job, command_id=command_id, recurrence_id="monday"))
    assert await asyncio.to_thread(doomed.wait) == -signal.SIGKILL
    recorded = [stored for stored in await history(store, job) if isinstance(stored.recorded.event, TrialStarted)]
    assert len(recorded) == (0 if point == "before_commit" else 1)
    heir = start_worker().ready()
    trial = await pending
    assert (trial.trial_number, trial.batch_size) == (1, 64)
    again = await begin(ask, job, command_id=command_id, recurrence_id="monday")
    assert again == trial
    result = "decided" if point == "before_commit" else "repeated"
    await eventually_async(lambda: heir.metric("bso_commands_total", type="begin_trial", result=result) >= 1)
    await train(ask, job, trial, lambda: None)
    assert await audit(store, job) == 1


@pytest.mark.slow
async def test_a_worker_that_freezes_with_locks_holds_up_their_jobs_for_a_short_while_and_no_others(
    store: SqlStore, ask: Queue, start_worker: StartWorker
) -> None:
    frozen = start_worker(program=(CRASHING, "before_commit_frozen")).ready()
    held, other = new_job(), new_job()
    for job in (held, other):
        await register(ask, job)
    pending = asyncio.create_task(begin(ask, held, recurrence_id="monday"))
    _, status = await asyncio.to_thread(os.waitpid, frozen.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    heir = start_worker().ready()
    async with Load(ask=ask, job_id=other) as load:
        await load.progress(10)
        trial = await pending  # the database has taken the lock back, and the broker what the frozen one was handed
        frozen.process.send_signal(signal.SIGCONT)
        await asyncio.to_thread(frozen.ready)
        await load.progress(10)
    await train(ask, held, trial, lambda: None)
    assert await audit(store, held) == 1
    assert await audit(store, other) == load.trials
    assert heir.metric("bso_dead_letters_total") == 0


@pytest.mark.slow
async def test_events_of_a_dead_worker_are_relayed(
    store: SqlStore, ask: Queue, amqp_url: str, start_worker: StartWorker
) -> None:
    doomed = start_worker(program=(CRASHING, "after_commit"), relay_interval_s=100).ready()
    job = new_job()
    await register(ask, job)
    broker = RabbitBroker(amqp_url)
    subscriber = broker.event_subscriber(event_pattern(event_type="trial_started", job_id=job))
    await subscriber.start()
    await eventually_async(subscriber.connected.is_set)
    pending = asyncio.create_task(begin(ask, job))
    assert await asyncio.to_thread(doomed.wait) == -signal.SIGKILL
    waiting = (await store.unpublished(older_than_s=0.0)).events
    assert "TrialStarted" in {type(stored.recorded.event).__name__ for stored in waiting}
    heirs = [start_worker(relay_age_s=1.0) for _ in range(2)]
    async with asyncio.timeout(PATIENCE_S):
        event = await anext(aiter(subscriber))
        await pending
    assert event.message_id.startswith(f"{job}:")
    await eventually_async(lambda: _all_published(store))
    await eventually_async(lambda: sum(heir.metric("bso_events_relayed_total") for heir in heirs) >= len(waiting))
    await subscriber.close()


async def _all_published(store: SqlStore) -> bool:
    return not (await store.unpublished(older_than_s=0.0)).events


@pytest.mark.slow
async def test_workers_killed_one_after_another_under_load_lose_and_double_nothing(
    store: SqlStore, ask: Queue, start_worker: StartWorker
) -> None:
    job = new_job()
    living = [start_worker().ready(), start_worker().ready()]
    await register(ask, job)
    async with Load(ask=ask, job_id=job) as load:
        for _ in range(4):
            await load.progress(10)
            living.pop(0).kill()
            living.append(await asyncio.to_thread(start_worker().ready))
        await load.progress(10)
    assert load.trials == await audit(store, job)
