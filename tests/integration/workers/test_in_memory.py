"""A worker over a broker and a store in memory: what it does with each kind of message."""

import uuid

from bso.service.memory import InMemoryStore
from tests.fakes.memory_broker import MemoryBroker
from tests.integration.workers.fixtures import RunWorker
from tests.integration.workers.recurrences import Queue, audit, begin, new_job, recur, recur_at_once, register, report


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


async def test_recurrences_without_a_model_are_counted_from_the_third_in_a_row_on(
    memory_broker: MemoryBroker, memory_store: InMemoryStore, run_worker: RunWorker
) -> None:
    job, counts = new_job(), []
    async with run_worker(memory_broker, memory_store) as parts, Queue(broker=memory_broker) as ask:
        await register(ask, job, max_epochs=1, max_attempts=1)
        for night in range(5):
            trial = await begin(ask, job, recurrence_id=f"night-{night}")
            command_id = str(uuid.uuid4())
            for _ in range(2):  # sent again, it is not counted again
                await ask(job, report(trial, 1, metric=0.1), command_id=command_id)
            counts.append(parts.metrics.registry.get_sample_value("bso_attention_needed_total"))
    assert counts == [0, 0, 1, 2, 3]
