"""The same commands, ids, seeds and reports give the same batch sizes and stops wherever they are decided."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bso.domain.commands import BeginTrial, Command, FinishTrial
from bso.domain.replies import EpochJudged, Reply, TrialBegun, TrialFinished
from bso.domain.trial import Outcome
from bso.schema.codec import encode_reply
from bso.service.engine import Engine
from bso.service.memory import InMemoryStore
from bso.storage import SqlStore
from bso_client.transports.embedded import open_embedded
from tests.fakes.memory_broker import MemoryBroker
from tests.integration.workers.fixtures import RunWorker, StartWorker
from tests.integration.workers.recurrences import HARDWARE, Ask, Direct, Queue, register, report, scripted_ids

JOBS: dict[str, dict[str, Any]] = {
    "default": {},
    "cheap": {"policy": "pruning_thompson", "eta_knob": 1.0, "num_pruning_rounds": 1},
    "quick": {"policy": "pruning_thompson", "eta_knob": 0.0, "mab_seed": None, "num_pruning_rounds": 0},
    "window": {"policy": "pruning_thompson", "window_size": 3},
}
RECURRENCES = 14


async def story(ask: Ask) -> list[str]:
    """Everything that is answered to a fixed script with failures, overlaps and drift, as text, job by job."""
    return [line for told in await asyncio.gather(*(story_of(ask, job) for job in JOBS)) for line in told]


async def story_of(ask: Ask, job: str) -> list[str]:
    new_id = scripted_ids(job)
    told = [shown(await register(ask, job, command_id=new_id(), **JOBS[job]))]
    for night in range(RECURRENCES):
        told += await recurrence(ask, job, night, new_id)
    return told


async def recurrence(ask: Ask, job: str, night: int, new_id: Callable[[], str]) -> list[str]:
    told: list[str] = []

    async def tell(command: Command) -> Reply:
        reply = await ask(job, command, command_id=new_id())
        told.append(shown(reply))
        return reply

    wants_more = True
    while wants_more:
        trial = await tell(BeginTrial(hardware=HARDWARE, recurrence_id=f"night-{night}"))
        beside = await tell(BeginTrial(hardware=HARDWARE, recurrence_id=f"beside-{night}"))
        assert isinstance(trial, TrialBegun)
        assert isinstance(beside, TrialBegun)
        wants_more = await train(tell, trial, night)
        reply = await tell(
            FinishTrial(
                trial_number=beside.trial_number,
                trial_id=beside.trial_id,
                outcome=Outcome.INFEASIBLE if beside.batch_size == 256 else Outcome.CANCELLED,
                reason="out_of_memory: told by the script" if beside.batch_size == 256 else "told by the script",
            )
        )
        assert isinstance(reply, TrialFinished)
    return told


async def train(tell: Callable[[Command], Awaitable[Reply]], trial: TrialBegun, night: int) -> bool:
    drift = 1.0 if night < RECURRENCES // 2 else 3.0
    for epoch in range(1, 10):
        usual = report(trial, epoch)
        assert usual.energy_j is not None
        reply = await tell(
            report(trial, epoch, time_s=usual.time_s * drift, energy_j=usual.energy_j * drift * (1 + 0.01 * night))
        )
        assert isinstance(reply, EpochJudged)
        if reply.should_stop:
            return reply.should_retry
    raise AssertionError("never stopped")


def shown(reply: Reply) -> str:
    return encode_reply(reply, command_id=str(uuid.UUID(int=0)), job_id=None).decode()


async def in_memory() -> list[str]:
    return await story(Direct(engine=Engine(InMemoryStore(lambda: datetime.now(UTC)))))


async def test_embedded_as_in_memory(tmp_path: Path) -> None:
    embedded = await open_embedded(tmp_path / "bso.db")
    try:
        assert await story(_Embedded(embedded)) == await in_memory()
    finally:
        await embedded.close()


class _Embedded(Direct):
    def __init__(self, embedded: Any) -> None:
        super().__init__(engine=embedded)


async def test_through_a_queue_in_memory_as_in_memory(
    memory_broker: MemoryBroker, memory_store: InMemoryStore, run_worker: RunWorker
) -> None:
    async with run_worker(memory_broker, memory_store), Queue(broker=memory_broker) as ask:
        assert await story(ask) == await in_memory()


async def test_through_rabbitmq_and_a_server_as_in_memory(
    store: SqlStore, ask: Queue, start_worker: StartWorker
) -> None:
    workers = [start_worker().ready(), start_worker().ready()]
    assert await story(ask) == await in_memory()
    assert all(worker.metric("bso_commands_total") > 10 for worker in workers)


async def test_the_script_explores_fails_stops_and_notices_the_drift() -> None:
    told = "\n".join(await in_memory())
    for word in (
        "cost_exceeded",
        "not_converged",
        "converged",
        "is the lowest of",
        '"batch_size":16',
        '"batch_size":128',
    ):
        assert word in told, word
