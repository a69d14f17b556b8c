"""Jobs in trouble for which no command comes; in memory."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import pytest

from bso.domain.commands import Request
from bso.domain.policies import PolicyMissing
from bso.service.answers import Answer, Undecided
from bso.service.engine import Engine
from bso.service.errors import Conflict, JobDamaged, StoreUnavailable
from bso.service.memory import InMemoryStore
from bso.service.records import ChangeSet, JobChange
from bso_workers.metrics import Metrics
from bso_workers.recovery import Recovery
from bso_workers.settlement import Settlement
from bso_workers.troubled_jobs import TroubledJobs
from bso_workers.unforeseen import UnforeseenErrors
from tests.fakes.memory_broker import MemoryBroker
from tests.integration.workers.recurrences import Direct, begin, new_job, register


class Troubled:
    """An engine that fails as a test says."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.error: Exception | None = None
        self.tries = 0
        self.on_try: Callable[[], Awaitable[None]] | None = None

    async def execute(self, requests: Sequence[Request]) -> list[Answer]:
        self.tries += 1
        if self.on_try is not None:
            await self.on_try()
        if self.error is not None:
            raise self.error
        return await self._engine.execute(requests)

    async def attempt(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
        return await self._engine.attempt(requests)


class Scene:
    """A worker's jobs in trouble, at a time [s] that the test sets."""

    def __init__(self) -> None:
        self.now_s, self.ready_for_s, self.lanes = 0.0, 1.0, set[str]()
        self.store, self.metrics, broker = InMemoryStore(lambda: datetime.now(UTC)), Metrics(), MemoryBroker()
        self.engine = Engine(self.store)
        self.decider = Troubled(self.engine)
        consumer = broker.command_consumer(batch_limit=1, prefetch=1)
        self.parking = TroubledJobs(
            jobs=self.store.parked_jobs,
            settlement=Settlement(consumer=consumer, replies=broker.reply_publisher(), metrics=self.metrics),
            metrics=self.metrics,
            clock=lambda: self.now_s,
            limit_s=3600.0,
        )
        self.recovery = Recovery(
            store=self.store,
            decider=self.decider,
            parking=self.parking,
            unforeseen=UnforeseenErrors(self.metrics),
            ready_for_s=lambda: self.ready_for_s,
            has_lane=lambda job_id: job_id in self.lanes,
            interval_s=1.0,
        )

    async def new_job(self) -> str:
        job, ask = new_job(), Direct(engine=self.engine)
        await register(ask, job)
        await begin(ask, job)
        return job

    async def tries(self, *, for_s: int) -> int:
        """How often jobs are tried in so many seconds."""
        before = self.decider.tries
        for _ in range(for_s):
            self.now_s += 1.0
            await self.recovery.try_again()
        return self.decider.tries - before

    async def parked(self) -> list[str]:
        return [parked.job_id for parked in await self.store.parked_jobs.all()]


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize(
    "error", [Conflict("held"), JobDamaged("damaged"), PolicyMissing("not here"), TypeError("a defect")]
)
async def test_a_job_is_tried_once_a_pause_until_it_has_recovered(scene: Scene, error: Exception) -> None:
    job = await scene.new_job()
    scene.decider.error = error
    await scene.parking.park(job, JobDamaged("damaged"))
    assert await scene.tries(for_s=4) == 0
    assert await scene.tries(for_s=150) <= 20
    assert await scene.parked() == [job]
    scene.decider.error = None
    assert await scene.tries(for_s=60) == 1
    assert await scene.parked() == []
    assert not scene.parking.knows(job)


async def test_a_job_whose_row_is_behind_its_log_has_not_recovered(scene: Scene) -> None:
    job = await scene.new_job()
    async with scene.store.unit_of_work() as uow:
        stored = (await uow.lock([job], creating=()))[job]
        now = (await uow.recollect(())).now
        await uow.commit(
            ChangeSet(
                now=now, jobs=(JobChange(job_id=job, last_seq=stored.last_seq - 1, revision=stored.revision + 1),)
            )
        )
    await scene.parking.park(job, JobDamaged("behind its log"))
    assert await scene.tries(for_s=60) == 3
    assert await scene.parked() == [job]


async def test_a_job_is_not_tried_beside_its_commands_nor_by_a_worker_that_is_not_ready(scene: Scene) -> None:
    job = await scene.new_job()
    await scene.parking.park(job, JobDamaged("damaged"))
    scene.lanes.add(job)
    assert await scene.tries(for_s=60) == 0
    scene.lanes.clear()
    scene.ready_for_s = 0.0
    assert await scene.tries(for_s=60) == 0


async def test_a_job_that_recovers_while_another_is_tried_is_left_alone(scene: Scene) -> None:
    jobs = [await scene.new_job(), await scene.new_job()]
    for job in jobs:
        await scene.parking.park(job, JobDamaged("damaged"))
    scene.decider.on_try = lambda: scene.parking.works(jobs)
    assert await scene.tries(for_s=60) == 1
    assert await scene.parked() == []


async def test_a_store_that_is_away_is_no_trouble_of_a_job(scene: Scene) -> None:
    job = await scene.new_job()
    await scene.parking.park(job, JobDamaged("damaged"))
    scene.decider.error = StoreUnavailable("away")
    assert await scene.tries(for_s=20) == 4, "its pauses do not grow"
    assert [parked.reason for parked in await scene.store.parked_jobs.all()] == ["damaged"]
