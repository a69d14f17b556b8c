"""Histories to replay: all that can happen to jobs, and SQL to tamper with what came of it."""

from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from bso.domain.commands import (
    DeleteJob,
    EpochCostProbe,
    ExpireLease,
    PowerMeasurement,
    ReportEpochCosts,
    ReportPowerProfile,
)
from bso.domain.decide import Rules
from bso.domain.learning_rate import LearningRate
from bso.domain.replies import TrialBegun
from bso.domain.trial import Outcome
from bso.replay.verification import JobCheck, verify
from bso.service.engine import Engine
from bso.service.records import StoredEvent
from bso.service.retention import prune_events
from bso.storage import SqlStore
from tests.contract.storage.job_requests import HARDWARE, Campaign, ask, begin, finish, registration, report, request

TRAINED, ODD, DELETED = "trained", "odd", "deleted"
JOBS = (DELETED, ODD, TRAINED)
in_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For tests of what is the same in every database."""
FAR = datetime(2100, 1, 1, tzinfo=UTC)


async def lived(store: SqlStore) -> None:
    """Three jobs: one with many recurrences, one with everything unusual, and one that was deleted."""
    engine = Engine(store)
    await Campaign(engine=engine, seed=3, job_id=TRAINED).run(2)
    await unusual(store)
    await ask(engine, registration(DELETED))
    await begin(engine, DELETED)
    await ask(engine, profile(DELETED, 64, 200.0), request(DeleteJob(), job_id=DELETED))


async def unusual(store: SqlStore) -> None:
    """Profiles, learning rates, NaN, fill-ins, a trial that runs on and one whose result came late."""
    engine = Engine(store, Rules(lease_s=0.0, resume_window_s=0.0))
    await ask(engine, registration(ODD), profile(ODD, 64, 300.0), profile(ODD, 64, 250.0), profile(ODD, 32, 100.0))
    running = await begin(engine, ODD, learning_rate=LearningRate(0.1 + 0.2, reference_batch_size=96))
    await ask(engine, report(running, 3, job_id=ODD, metric=float("nan"), is_profiling=True))
    await ask(engine, report(running, 1.5, job_id=ODD))
    await ask(engine, probed(running))
    late = await given_up(store, ODD)
    await ask(engine, finish(late, Outcome.CONVERGED, "it came after all ✓", job_id=ODD, is_journalled=True))
    await given_up(store, ODD)
    await ask(engine, registration(ODD, target_metric=0.95, version="v2 🚀"))
    await begin(Engine(store), ODD)


async def given_up(store: SqlStore, job_id: str) -> TrialBegun:
    """A trial that sent nothing for so long that it was ended."""
    engine = Engine(store, Rules(lease_s=0.0, resume_window_s=0.0))
    trial = await begin(engine, job_id)
    for _ in range(2):
        [row] = [one for one in await store.trials(job_id) if one.trial_number == trial.trial_number]
        assert row.lease_expires_at is not None
        expiry = ExpireLease(
            trial_number=trial.trial_number, trial_id=trial.trial_id, lease_expires_at=row.lease_expires_at
        )
        await ask(engine, request(expiry, job_id=job_id))
    return trial


def profile(job_id: str, batch_size: int, *limits_w: float) -> Any:
    """The report of a power profile."""
    measured = tuple(PowerMeasurement(power_limit_w=w, average_power_w=w - 10, samples_per_s=1e3 / 3) for w in limits_w)
    return request(ReportPowerProfile(batch_size=batch_size, hardware=HARDWARE, measurements=measured), job_id=job_id)


def probed(trial: TrialBegun) -> Any:
    """The report of probed epoch costs: of two batch sizes, and of one that did not fit."""
    probes = tuple(EpochCostProbe(batch_size=size, time_s=0.1, energy_j=1e3 / 3, variance=0.01) for size in (32, 64))
    command = ReportEpochCosts(
        trial_number=trial.trial_number,
        trial_id=trial.trial_id,
        probes=probes,
        out_of_memory=(128,),
        time_s=0.3,
        energy_j=0.7,
    )
    return request(command, job_id=ODD)


async def published(store: SqlStore) -> None:
    """Let every event be known as published."""
    await store.mark_published([stored.event_id for stored in await store.history(limit=100_000)])


async def pruned(store: SqlStore) -> list[StoredEvent]:
    """Prune everything; what was pruned."""
    await published(store)
    gone: list[StoredEvent] = []
    await prune_events(store, before=FAR, export=gone.extend)
    return gone


async def verdicts(store: SqlStore) -> list[JobCheck]:
    """What verification says of every job of a store."""
    return [await verify(store, job_id) for job_id in await store.job_ids()]


async def assert_sound(store: SqlStore) -> None:
    """Every log gives what the tables hold."""
    for verdict in await verdicts(store):
        assert verdict.is_sound, (verdict.job_id, verdict.problem, [one.sentence for one in verdict.differences])


async def execute(url: str, statement: str, **values: Any) -> int:
    """Tamper with a database; the number of rows that it met."""
    engine = create_async_engine(url)
    try:
        async with engine.begin() as connection:
            return (await connection.execute(sa.text(statement), values)).rowcount
    finally:
        await engine.dispose()


async def table(url: str, name: str) -> list[dict[str, Any]]:
    """All rows of a table, as they are."""
    engine = create_async_engine(url)
    try:
        async with engine.begin() as connection:
            return [dict(row) for row in (await connection.execute(sa.text(f"SELECT * FROM {name}"))).mappings()]
    finally:
        await engine.dispose()
