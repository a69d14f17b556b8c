"""Lapsed leases: who may expire them, when, and how often."""

import asyncio
from collections.abc import Sequence

import pytest

from bso.domain.commands import RenewLease, Request
from bso.domain.decide import Rules
from bso.domain.events import TrialEnded, TrialResumed, TrialSuspended
from bso.domain.replies import LeaseRenewed
from bso.domain.trial import Outcome, TrialState
from bso.service.answers import Answer
from bso.service.engine import Engine
from bso.service.memory import InMemoryStore
from bso.storage import SqlStore
from bso_workers.decider import Decider
from bso_workers.metrics import Metrics
from bso_workers.outbox import EventOutbox
from bso_workers.reaper import Reaper
from bso_workers.settlement import Settlement
from bso_workers.troubled_jobs import TroubledJobs
from bso_workers.unforeseen import UnforeseenErrors
from tests.fakes.memory_broker import MemoryBroker
from tests.integration.workers.fixtures import Clock, RunWorker, StartWorker
from tests.integration.workers.recurrences import Direct, Queue, audit, begin, history, new_job, register, report, train
from tests.servers import eventually_async
from tests.servers.sql import execute

LEASE_S = 600.0


def reaper_over(
    store: InMemoryStore | SqlStore,
    *,
    ready_for_s: float = LEASE_S,
    waiting: int = 0,
    metrics: Metrics | None = None,
    decider: Decider | None = None,
) -> Reaper:
    async def waiting_commands() -> int:
        return waiting

    metrics = metrics or Metrics()
    broker = MemoryBroker()
    consumer = broker.command_consumer(batch_limit=1, prefetch=1)
    settlement = Settlement(consumer=consumer, replies=broker.reply_publisher(), metrics=metrics)
    clock = asyncio.get_running_loop().time
    return Reaper(
        store=store,
        decider=decider or Engine(store),
        outbox=EventOutbox(sink=broker.event_publisher(), marks=store, metrics=metrics),
        metrics=metrics,
        unforeseen=UnforeseenErrors(metrics),
        parking=TroubledJobs(
            jobs=store.parked_jobs, settlement=settlement, metrics=metrics, clock=clock, limit_s=3600.0
        ),
        ready_for_s=lambda: ready_for_s,
        waiting_commands=waiting_commands,
        lease_s=LEASE_S,
        interval_s=1.0,
    )


async def test_a_lapsed_lease_suspends_its_trial_and_a_report_wakes_it_up(
    store_by_clock: InMemoryStore, clock: Clock
) -> None:
    ask, job = Direct(engine=Engine(store_by_clock)), new_job()
    await register(ask, job)
    trial = await begin(ask, job)
    reaper = reaper_over(store_by_clock)
    assert await reaper.reap() == 0
    clock.forward(LEASE_S + 1)
    assert await reaper.reap() == 1
    (suspended,) = await store_by_clock.trials(job)
    assert suspended.state is TrialState.SUSPENDED
    assert await reaper.reap() == 0
    await ask(job, report(trial, 1))
    kinds = [type(stored.recorded.event) for stored in await history(store_by_clock, job)]
    assert (kinds.count(TrialSuspended), kinds.count(TrialResumed)) == (1, 1)


async def test_a_trial_that_stays_away_ends_as_interrupted(store_by_clock: InMemoryStore, clock: Clock) -> None:
    ask, job = Direct(engine=Engine(store_by_clock)), new_job()
    await register(ask, job)
    await begin(ask, job)
    reaper = reaper_over(store_by_clock)
    clock.forward(LEASE_S + 1)
    assert await reaper.reap() == 1
    clock.forward(8 * 86400)
    assert await reaper.reap() == 1
    assert await reaper.reap() == 0
    (trial,) = await store_by_clock.trials(job)
    assert trial.outcome is Outcome.INTERRUPTED
    assert await audit(store_by_clock, job) == 1


async def test_reapers_at_once_expire_a_lease_once(store_by_clock: InMemoryStore, clock: Clock) -> None:
    ask, job = Direct(engine=Engine(store_by_clock)), new_job()
    await register(ask, job)
    for number in range(5):
        await begin(ask, job, recurrence_id=f"night-{number}")
    clock.forward(LEASE_S + 1)
    reaped = await asyncio.gather(*(reaper_over(store_by_clock).reap() for _ in range(4)))
    assert sum(reaped) == 5


@pytest.mark.parametrize(("ready_for_s", "waiting"), [(0.0, 0), (LEASE_S - 1, 0), (LEASE_S, 1)])
async def test_after_an_outage_renewals_come_first(
    store_by_clock: InMemoryStore, clock: Clock, ready_for_s: float, waiting: int
) -> None:
    ask, job = Direct(engine=Engine(store_by_clock)), new_job()
    await register(ask, job)
    trial = await begin(ask, job)
    clock.forward(LEASE_S + 1)
    assert await reaper_over(store_by_clock, ready_for_s=ready_for_s, waiting=waiting).reap() == 0
    renewal = RenewLease(trial_number=trial.trial_number, trial_id=trial.trial_id)
    assert isinstance(await ask(job, renewal), LeaseRenewed)
    assert await reaper_over(store_by_clock).reap() == 0


async def test_the_many_leases_of_a_damaged_job_keep_no_others_from_being_expired(store: SqlStore) -> None:
    brief, damaged, healthy = Engine(store, Rules(lease_s=0.0)), new_job(), new_job()
    for job, trials in ((damaged, 101), (healthy, 1)):
        await register(Direct(engine=brief), job)
        for number in range(trials):
            await begin(Direct(engine=brief), job, recurrence_id=f"night-{number}")
    await execute(store, f"UPDATE job SET revision = revision + 1, state = '[' WHERE job_id = '{damaged}'")
    assert await reaper_over(store).reap() == 1
    assert [trial.state for trial in await store.trials(healthy)] == [TrialState.SUSPENDED]
    assert [parked.job_id for parked in await store.parked_jobs.all()] == [damaged]


class Defective:
    """An engine with a defect that shows for one job."""

    def __init__(self, engine: Engine, job_id: str) -> None:
        self.attempt = engine.attempt
        self._engine = engine
        self._job_id = job_id

    async def execute(self, requests: Sequence[Request]) -> list[Answer]:
        if requests[0].job_id == self._job_id:
            raise TypeError("a defect")
        return await self._engine.execute(requests)


async def test_an_unforeseen_error_over_one_job_keeps_no_others_from_being_expired(
    store_by_clock: InMemoryStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    engine, jobs, metrics = Engine(store_by_clock), (new_job(), new_job()), Metrics()
    for job in jobs:
        await register(Direct(engine=engine), job)
        await begin(Direct(engine=engine), job)
    clock.forward(LEASE_S + 1)
    reaper = reaper_over(store_by_clock, decider=Defective(engine, jobs[0]), metrics=metrics)
    assert [await reaper.reap() for _ in range(2)] == [1, 0]
    assert metrics.registry.get_sample_value("bso_unforeseen_errors_total", {"part": "reaper"}) == 2
    [record] = [record for record in caplog.records if getattr(record, "action", "") == "unforeseen_error"]
    assert record.exc_info, "the traceback, once"


@pytest.mark.slow
async def test_a_damaged_trial_id_is_the_trouble_of_its_job(
    store: SqlStore, ask: Queue, start_worker: StartWorker
) -> None:
    workers = [start_worker(lease_s=1.5).ready() for _ in range(2)]
    damaged, healthy = new_job(), new_job()
    for job in (damaged, healthy):
        await register(ask, job)
    await begin(Direct(engine=Engine(store, Rules(lease_s=LEASE_S))), damaged)  # the damage comes before the lapse
    await execute(
        store, f"UPDATE trial SET trial_id = 'nonsense', lease_expires_at = '2000-01-01' WHERE job_id = '{damaged}'"
    )
    await begin(ask, healthy)

    async def is_suspended() -> bool:
        return (await store.trials(healthy))[0].state is TrialState.SUSPENDED

    async def is_parked() -> bool:
        return [parked.job_id for parked in await store.parked_jobs.all()] == [damaged]

    await eventually_async(is_parked)
    await eventually_async(is_suspended)
    lines = [line for worker in workers for line in worker.lines("job_parked")]
    assert all(f"bso replay rebuild {damaged}" in line["remedy"] for line in lines)
    assert all(worker.process.poll() is None for worker in workers)
    assert not any(worker.lines("unforeseen_error") for worker in workers)


async def test_three_workers_expire_each_lapsed_lease_exactly_once(
    store: SqlStore, ask: Queue, start_worker: StartWorker
) -> None:
    workers = [start_worker(lease_s=1.5) for _ in range(3)]
    for worker in workers:
        worker.ready()
    job = new_job()
    await register(ask, job)
    silent = [await begin(ask, job, recurrence_id=f"night-{number}") for number in range(6)]
    long_leases = Direct(engine=Engine(store, Rules(lease_s=LEASE_S)))  # no report is too slow for them
    alive = await begin(long_leases, job, recurrence_id="alive")

    async def all_suspended() -> bool:
        states = {trial.trial_number: trial.state for trial in await store.trials(job)}
        return all(states[trial.trial_number] is TrialState.SUSPENDED for trial in silent)

    await eventually_async(all_suspended)
    await train(long_leases, job, alive, lambda: None)
    events = [stored.recorded.event for stored in await history(store, job)]
    suspended = [event.trial_number for event in events if isinstance(event, TrialSuspended)]
    assert sorted(suspended) == [trial.trial_number for trial in silent]
    assert [event.trial_number for event in events if isinstance(event, TrialEnded)] == [alive.trial_number]
    await eventually_async(lambda: sum(worker.metric("bso_leases_reaped_total") for worker in workers) == len(silent))
    assert await audit(store, job) == len(silent) + 1


async def test_a_worker_that_was_not_ready_begins_a_new_lease_of_patience(
    memory_broker: MemoryBroker, memory_store: InMemoryStore, run_worker: RunWorker
) -> None:
    now_s = asyncio.get_running_loop().time
    async with run_worker(memory_broker, memory_store) as parts:
        readiness = parts.readiness
        for break_off, mend in (
            (memory_broker.go_away, memory_broker.come_back),
            (lambda: readiness.report("database", "away"), lambda: readiness.report("database", None)),
        ):
            await eventually_async(lambda: readiness.ready_for_s() > 0)
            break_off()
            assert readiness.ready_for_s() == 0
            broken_at_s = now_s()
            mend()
            await eventually_async(lambda: readiness.is_ready)
            assert 0 <= readiness.ready_for_s() <= now_s() - broken_at_s
