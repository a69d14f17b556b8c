"""A worker over a broker and a store in memory: what it does with each kind of message."""

from bso.service.memory import InMemoryStore
from bso_broker.memory import MemoryBroker
from tests.integration.workers.fixtures import RunWorker
from tests.integration.workers.training import Queue, audit, new_job, recur, recur_at_once, register


async def test_a_recurrence_ends_with_a_model(
    memory_broker: MemoryBroker, memory_store: InMemoryStore, run_worker: RunWorker
) -> None:
    job = new_job()
    async with run_worker(memory_broker, memory_store), Queue(broker=memory_broker) as ask:
        await register(ask, job)
        trials = await recur(ask, job, "monday")
    assert trials[-1].outcome is not None
    assert trials[-1].outcome.value == "converged"
    assert await audit(memory_store, job) == len(trials)


async def test_overlapping_recurrences_leave_log_and_tables_in_agreement(
    memory_broker: MemoryBroker, memory_store: InMemoryStore, run_worker: RunWorker
) -> None:
    job = new_job()
    async with (
        run_worker(memory_broker, memory_store),
        run_worker(memory_broker, memory_store),
        Queue(broker=memory_broker) as ask,
    ):
        await register(ask, job)
        ran = await recur_at_once(ask, job, at_once=8, trials=60)
    assert await audit(memory_store, job) == ran
