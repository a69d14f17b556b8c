"""Several worker processes between RabbitMQ and the database."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence

import pytest

from bso.storage import SqlStore
from bso_broker.connection import BrokerAddress
from bso_broker.rabbit import RabbitBroker
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.processes import WorkerProcess
from tests.integration.workers.recurrences import Load, Queue, audit, recur_at_once, register
from tests.servers import PATIENCE_S, eventually_async

OVERLAPPING = 8


@pytest.fixture
async def ask(amqp_url: str) -> AsyncIterator[Queue]:
    """As everywhere, but nothing is sent twice because an answer takes its time."""
    address = BrokerAddress(url=amqp_url, resend_after_s=PATIENCE_S)
    async with RabbitBroker(address) as broker, Queue(broker=broker) as queue:
        yield queue


async def load(ask: Queue, store: SqlStore, *, jobs: int, trials: int) -> int:
    """Run so many trials of so many jobs, the first with overlapping recurrences, and audit each; their number."""
    names = [f"job-{number:02}" for number in range(jobs)]
    await asyncio.gather(*(register(ask, name) for name in names))
    each = trials // jobs
    ran = await asyncio.gather(
        *(
            recur_at_once(ask, name, at_once=1 if number else OVERLAPPING, trials=each)
            for number, name in enumerate(names)
        )
    )
    audited = [await audit(store, name) for name in names]
    assert audited == list(ran)
    return sum(audited)


def decided(workers: Sequence[WorkerProcess]) -> float:
    return sum(worker.metric("bso_commands_total", result="decided") for worker in workers)


async def check(ask: Queue, store: SqlStore, workers: Sequence[WorkerProcess], *, trials: int) -> None:
    began_s = asyncio.get_running_loop().time()
    cpu_before_s = sum(worker.metric("process_cpu_seconds_total") for worker in workers)
    ran = await load(ask, store, jobs=20, trials=trials)
    took_s = asyncio.get_running_loop().time() - began_s
    assert ran >= trials
    for worker in workers:
        assert worker.metric("bso_commands_total") > 0, "every worker has its share"
        assert worker.metric("bso_dead_letters_total") == 0
        assert worker.metric("bso_pauses_total") == 0
        assert worker.metric("bso_commands_total", result="problem") == 0
        assert worker.metric("bso_commands_total", result="repeated") == 0
        assert not [line for line in worker.lines() if line["level"] in {"warning", "error", "critical"}]
    await eventually_async(lambda: _all_published(store))
    cpu_s = sum(worker.metric("process_cpu_seconds_total") for worker in workers) - cpu_before_s
    commands = decided(workers)
    batches = sum(worker.metric("bso_batch_commands_count") for worker in workers)
    print(  # noqa: T201  figures for who asks with -s
        f"\n{ran} trials, {commands:.0f} commands in {took_s:.1f} s: {commands / took_s:.0f}/s, "
        f"{commands / batches:.1f} per batch, worker CPU {1e6 * cpu_s / commands:.0f} us per command, "
        f"{sum(worker.metric('bso_database_retries_total') for worker in workers):.0f} retries"
    )


async def _all_published(store: SqlStore) -> bool:
    return not (await store.unpublished(older_than_s=0.0)).events


@pytest.mark.slow
async def test_three_workers_answer_one_hundred_trials(store: SqlStore, ask: Queue, start_worker: StartWorker) -> None:
    workers = [start_worker(database_timeout_s=PATIENCE_S) for _ in range(3)]
    for worker in workers:
        worker.ready()
    await check(ask, store, workers, trials=100)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_three_workers_answer_two_thousand_trials(store: SqlStore, ask: Queue, start_worker: StartWorker) -> None:
    workers = [start_worker(database_timeout_s=PATIENCE_S) for _ in range(3)]
    for worker in workers:
        worker.ready()
    await check(ask, store, workers, trials=2000)


@pytest.mark.slow
async def test_workers_come_and_go_under_load(store: SqlStore, ask: Queue, start_worker: StartWorker) -> None:
    """One worker, then three, then another one alone."""
    first = start_worker().ready()
    job = f"job-{uuid.uuid4().hex[:8]}"
    await register(ask, job)
    async with Load(ask=ask, job_id=job, at_once=OVERLAPPING) as load:
        await eventually_async(lambda: first.metric("bso_commands_total") > 30)
        others = [start_worker(), start_worker()]
        for other in others:
            await asyncio.to_thread(other.ready)
        await eventually_async(lambda: all(other.metric("bso_commands_total") > 10 for other in others))
        first.terminate()
        others[0].terminate()
        assert await asyncio.to_thread(first.wait) == 0
        assert await asyncio.to_thread(others[0].wait) == 0
    assert load.trials == await audit(store, job)
