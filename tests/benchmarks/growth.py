"""Databases that have been in use for long: a decision must not pay for history."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

from sqlalchemy import Table, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from bso.domain.commands import Request
from bso.service.engine import Engine
from bso.storage import SqlStore
from bso.storage.tables import event, job, trial
from tests.benchmarks.engine import execute, new_lanes
from tests.benchmarks.figures import Figure, Figures
from tests.benchmarks.journeys import Driven, Tally
from tests.benchmarks.laboratory import Laboratory, run
from tests.benchmarks.lanes import batches, open_lanes
from tests.benchmarks.machine import Stopwatch
from tests.benchmarks.rows import row_of, tell
from tests.benchmarks.rpc import decided
from tests.benchmarks.stores import on_sqlite

HISTORIES = (10, 1_000, 100_000)
"""Ended trials of all jobs together; so many as the last only where it is measured thoroughly."""
QUICK_MOST = 1_000
JOBS = 10
IN_FLIGHT, CALLS = 64, 2_560
BATCH, BATCHES = 32, 40
EVENTS_PER_TRIAL = 3
_PAST = 1_000_000  # added to the numbers of trials that never were


@dataclass(kw_only=True)
class Aged:
    """Trainings whose jobs have so many ended trials behind them, and what measures a repetition."""

    path: str
    in_flight: int
    workers: int
    history: int
    window: Callable[[], Awaitable[Driven]]
    found: list[Driven] = field(default_factory=list)

    @property
    def past(self) -> str:
        """In words."""
        return f"{self.history} ended trials"


def measure(laboratory: Laboratory) -> list[Figure]:
    """What a decision costs with a short and with a long past: on the whole way, and in batches of 32 on SQLite."""
    figures = Figures(benchmark="growth")
    run(_measure(laboratory, figures))
    return figures.found


async def age(store: SqlStore, history: int) -> None:
    """Put a past behind the jobs: ended trials, shared equally, each with some reports like those that are there.

    Each job has a running trial and a report. 100 000 trials take some seconds.
    """
    async with store.engine.begin() as connection:
        jobs = (await connection.execute(select(job.c.job_id, job.c.last_seq))).all()
        each = history // len(jobs)
        reported = await _one(connection, event, event.c.type == "epoch_reported")
        running = await _one(connection, trial, trial.c.state == "running")
        ended = {"state": "ended", "outcome": "converged", "lease_expires_at": None, "trial_number": _PAST + 1}
        first = [running | ended | {"job_id": job_id, "trial_id": str(uuid.uuid4())} for job_id, _ in jobs]
        await connection.execute(insert(trial), first)
        for number in range(1, EVENTS_PER_TRIAL + 1):
            past = {"trial_number": _PAST + 1, "epoch": float(number), "published_at": reported["recorded_at"]}
            rows = [reported | past | {"job_id": job_id, "seq": last_seq + number} for job_id, last_seq in jobs]
            await connection.execute(insert(event), [row | {"command_id": str(uuid.uuid4())} for row in rows])
        there = 1
        while there < each:
            more = min(there, each - there)
            await _again(connection, trial, more, there, {"trial_id": _random(connection)})
            added = {"seq": event.c.seq + there * EVENTS_PER_TRIAL, "command_id": _random(connection)}
            await _again(connection, event, more, there, added)
            there += more
        seqs = {"last_seq": job.c.last_seq + each * EVENTS_PER_TRIAL, "revision": job.c.revision + 1}
        await connection.execute(update(job).values(seqs))


async def _measure(laboratory: Laboratory, figures: Figures) -> None:
    histories = [history for history in HISTORIES if history <= QUICK_MOST or not laboratory.effort.is_quick]
    for aged_by in (_on_whole_way, _on_sqlite):
        async with AsyncExitStack() as stack:
            aged = [await aged_by(laboratory, stack, history) for history in histories]
            for _ in range(laboratory.effort.repetitions):
                for one in aged:
                    one.found.append(await laboratory.undisturbed(one.window))
        for one in aged:
            peers = [] if one is aged[0] else aged[0].found
            tell(figures, f"{one.path}, {one.past}", one.found, peer=aged[0].past, peers=peers)
            row = row_of(one.path, one.found, in_flight=one.in_flight, workers=one.workers, case="history")
            laboratory.rows.append({**row, "jobs": JOBS, "history": one.history})


async def _on_whole_way(laboratory: Laboratory, stack: AsyncExitStack, history: int) -> Aged:
    crew = await asyncio.to_thread(laboratory.new_crew, 1)
    journeys = await stack.enter_async_context(crew.route.opened())
    assert journeys.store is not None
    lanes = await open_lanes(journeys.ask, IN_FLIGHT, jobs=JOBS)
    await decided(journeys, lanes, IN_FLIGHT, IN_FLIGHT)
    await age(journeys.store, history)
    await decided(journeys, lanes, IN_FLIGHT, 4 * IN_FLIGHT)
    window = partial(decided, journeys, lanes, IN_FLIGHT, laboratory.effort.of(CALLS))
    return Aged(path="bso", in_flight=IN_FLIGHT, workers=1, history=history, window=window)


async def _on_sqlite(laboratory: Laboratory, stack: AsyncExitStack, history: int) -> Aged:
    place = await on_sqlite(laboratory, f"growth-{history}")
    store = place.open()
    stack.push_async_callback(store.close)
    engine = Engine(store)
    lanes = await new_lanes(engine, BATCH, jobs=JOBS)
    await execute(engine, batches(lanes, size=BATCH, count=1))
    await age(store, history)
    await execute(engine, batches(lanes, size=BATCH, count=5))

    async def window() -> Driven:
        return await _executed(engine, batches(lanes, size=BATCH, count=laboratory.effort.of(BATCHES)))

    return Aged(path="engine_sqlite", in_flight=BATCH, workers=0, history=history, window=window)


async def _executed(engine: Engine, requests: Sequence[Sequence[Request]]) -> Driven:
    """Batch after batch; a command's latency is its batch's."""
    latencies_s: list[float] = []
    with Stopwatch() as watch:
        for batch in requests:
            began_s = perf_counter()
            await execute(engine, [batch])
            latencies_s += [perf_counter() - began_s] * len(batch)
    replies = (b"",) * len(latencies_s)
    tally = Tally(taken=len(replies), batches=len(requests))
    return Driven(elapsed=watch.elapsed, latencies_s=tuple(latencies_s), replies=replies, tally=tally)


async def _one(connection: AsyncConnection, table: Table, condition: Any) -> dict[str, Any]:
    row = dict((await connection.execute(select(table).where(condition).limit(1))).mappings().one())
    row.pop("event_id", None)
    return row


async def _again(connection: AsyncConnection, table: Table, more: int, there: int, changes: dict[str, Any]) -> None:
    """Insert the rows of the first past trials of each job once more, as those of so many trials later ones."""
    changes = {"trial_number": table.c.trial_number + there, **changes}
    columns = [column for column in table.columns if column.name != "event_id"]
    rows = select(*(changes.get(column.name, column) for column in columns))
    first = rows.where(table.c.trial_number > _PAST, table.c.trial_number <= _PAST + more)
    await connection.execute(insert(table).from_select(columns, first))


def _random(connection: AsyncConnection) -> Any:
    """An id, another one in each row, in an order of its own."""
    if connection.dialect.name == "sqlite":
        return func.lower(func.hex(func.randomblob(16)))
    return func.md5(func.uuid())
