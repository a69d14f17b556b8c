"""The engine on a database that has been in use for long: a decision must not pay for history."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from bso.service.engine import Engine
from bso.storage import SqlStore
from bso.storage.tables import event, job, trial
from tests.benchmarks.engine import execute, new_lanes, timed
from tests.benchmarks.figures import Figure, Figures
from tests.benchmarks.laboratory import Laboratory, run
from tests.benchmarks.lanes import Lane, batches
from tests.benchmarks.machine import Elapsed
from tests.benchmarks.stores import Place, on_mariadb, on_sqlite

SHORT, LONG = 1_000, 100_000
REPORTS_PER_TRIAL = 10
BATCH, BATCHES = 32, 20
_ROWS_AT_ONCE = 2_000

QUANTITIES: dict[str, Callable[[Elapsed], float]] = {
    "time per decision": lambda found: found.wall_s,
    "CPU per decision": lambda found: found.cpu_s,
    "database CPU per decision": lambda found: found.others_s["database"],
}


@dataclass(kw_only=True)
class Aged:
    """An engine over a log of so many events, and trainings whose jobs have written them."""

    place: Place
    store: SqlStore
    lanes: list[Lane]
    events: int
    engine: Engine
    found: list[Elapsed] = field(default_factory=list)


def measure(laboratory: Laboratory) -> list[Figure]:
    """Time and CPU time per decision, in batches of 32, with a short and with a long log."""
    figures = Figures(benchmark="growth")
    run(_measure(laboratory, figures))
    return figures.found


async def _measure(laboratory: Laboratory, figures: Figures) -> None:
    many = laboratory.effort.of(LONG)
    on_file: list[Place] = [await on_sqlite(laboratory, f"growth-{size}") for size in ("short", "long")]
    on_server: list[Place] = [await on_mariadb(laboratory) for _ in range(2)]
    for places in (on_file, on_server):
        short, long = [await _aged(place, events) for place, events in zip(places, (SHORT, many), strict=True)]
        try:
            for _ in range(laboratory.effort.repetitions):
                for one in (short, long):
                    requests = batches(one.lanes, size=BATCH, count=laboratory.effort.of(BATCHES))
                    one.found.append(await timed(one.engine, requests, one.place))
        finally:
            await short.store.close()
            await long.store.close()
        _report(figures, short, long, BATCH * laboratory.effort.of(BATCHES))


async def _aged(place: Place, events: int) -> Aged:
    store = place.open()
    engine = Engine(store)
    lanes = await new_lanes(engine)
    await execute(engine, batches(lanes, size=BATCH, count=1))
    async with store.engine.begin() as connection:
        await _age(connection, events)
    await execute(engine, batches(lanes, size=BATCH, count=5))
    return Aged(place=place, store=store, lanes=lanes, events=events, engine=engine)


async def _age(connection: AsyncConnection, events: int) -> None:
    """Put a past behind each job: ended trials and their reports, like those that are there, shared equally."""
    jobs = (await connection.execute(select(job.c.job_id, job.c.last_seq).order_by(job.c.job_id))).all()
    each = max(REPORTS_PER_TRIAL, events // len(jobs))
    reported = _without(await _one(connection, event, event.c.type == "epoch_reported"), "event_id")
    running = await _one(connection, trial, trial.c.state == "running")
    for job_id, last_seq in jobs:
        past = [_past_event(reported, job_id, last_seq + 1 + number) for number in range(each)]
        await _insert(connection, event, past)
        ended = [_ended_trial(running, job_id, number) for number in range(each // REPORTS_PER_TRIAL)]
        await _insert(connection, trial, ended)
        await connection.execute(update(job).where(job.c.job_id == job_id).values(last_seq=last_seq + each))


async def _one(connection: AsyncConnection, table: Any, condition: Any) -> dict[str, Any]:
    return dict((await connection.execute(select(table).where(condition).limit(1))).mappings().one())


def _without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


def _past_event(like: dict[str, Any], job_id: str, seq: int) -> dict[str, Any]:
    number = 1_000_000 + seq // REPORTS_PER_TRIAL
    epoch = float(seq % REPORTS_PER_TRIAL + 1)
    new = {"job_id": job_id, "seq": seq, "trial_number": number, "epoch": epoch, "command_id": str(uuid.uuid4())}
    return {**like, **new, "published_at": like["recorded_at"]}


def _ended_trial(like: dict[str, Any], job_id: str, number: int) -> dict[str, Any]:
    new = {"job_id": job_id, "trial_number": 1_000_000 + number, "trial_id": str(uuid.uuid4())}
    return {**like, **new, "state": "ended", "outcome": "converged", "lease_expires_at": None}


async def _insert(connection: AsyncConnection, table: Any, rows: Sequence[dict[str, Any]]) -> None:
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        await connection.execute(insert(table), rows[start : start + _ROWS_AT_ONCE])


def _report(figures: Figures, short: Aged, long: Aged, decisions: int) -> None:
    for one in (short, long):
        case = f"{one.place.name}, batches of {BATCH}; {one.events} events"
        peer = f"{short.events} events" if one is long else ""
        for quantity, of in QUANTITIES.items():
            mine, theirs = ([of(found) / decisions * 1e6 for found in some] for some in (one.found, short.found))
            if any(mine):
                figures.add(case, quantity, "us", mine, peer=peer, peer_values=theirs if peer else ())
