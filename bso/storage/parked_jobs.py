"""The table of parked jobs: those whose commands cannot be decided for now, and those that have just recovered."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Executable,
    Table,
    and_,
    delete,
    false,
    insert,
    literal,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from bso.service.errors import Conflict
from bso.service.records import ParkedJob
from bso.storage.connections import translated
from bso.storage.dialects import Dialect, Updates
from bso.storage.rows import Moment, Row
from bso.storage.statements import ACTIVE
from bso.storage.tables import event, job, parked_job, power_profile, trial

_PARKED_AGAIN = Updates(replaced=("recovered_at", "retry_at", "reason"), first_stays=("parked_at",))


class SqlParkedJobs:
    """Reads and writes the table, each time in a transaction of its own: of ``writing``, or as ``read`` reads."""

    def __init__(
        self,
        dialect: Dialect,
        *,
        writing: Callable[[], AbstractAsyncContextManager[AsyncConnection]],
        read: Callable[[Executable], Awaitable[Sequence[Row]]],
    ) -> None:
        self._dialect = dialect
        self._writing = writing
        self._read = read
        self._no_job = f"?{uuid.uuid4()}"  # no job has such an id, and no other process waits for its row

    async def park(self, job_id: str, *, reason: str, pause_s: float) -> None:
        """Record that a job's commands cannot be decided for now. Raises what keeps the database from being written."""
        async with self._writing() as connection:
            now = await self._now(connection)
            row = {"job_id": job_id, "parked_at": now, "reason": reason, "retry_at": now + timedelta(seconds=pause_s)}
            await self._upsert(connection, row | {"recovered_at": None})

    async def recover(self, job_ids: Collection[str]) -> None:
        """Record that commands of these jobs can be decided again."""
        are_parked = and_(parked_job.c.job_id.in_(sorted(job_ids)), parked_job.c.parked_at.is_not(None))
        async with self._writing() as connection:
            now = await self._now(connection)
            await connection.execute(update(parked_job).where(are_parked).values(parked_at=None, recovered_at=now))

    async def forget_recovered(self, *, older_than_s: float) -> None:
        """Forget jobs that have recovered so long ago; until then their leases do not lapse."""
        async with self._writing() as connection:
            until = await self._now(connection) - timedelta(seconds=older_than_s)
            await connection.execute(delete(parked_job).where(parked_job.c.recovered_at <= until))

    async def all(self) -> Sequence[ParkedJob]:
        """Jobs whose commands cannot be decided for now, the longest parked first."""
        columns = (parked_job.c.job_id, parked_job.c.reason, parked_job.c.parked_at, parked_job.c.retry_at)
        are_parked = parked_job.c.parked_at.is_not(None)
        rows = await self._read(select(*columns).where(are_parked).order_by(parked_job.c.parked_at))
        return [ParkedJob(**row) for row in rows]

    async def locked(self, job_ids: Collection[str]) -> Collection[str]:
        """Those of these jobs of whose trials, the active ones and the last, somebody else holds rows."""
        is_written = or_(trial.c.state.in_(ACTIVE), trial.c.trial_number == job.c.last_trial_number)
        of_jobs = and_(job.c.job_id.in_(sorted(job_ids)), trial.c.job_id == job.c.job_id)
        key = (trial.c.job_id, trial.c.trial_number)
        async with self._writing() as connection:
            wanted = [tuple(row) for row in await connection.execute(select(*key).where(of_jobs, is_written))]
            if not wanted:
                return ()
            found = self._dialect.by_index(select(*key).where(tuple_(*key).in_(wanted)), trial, "PRIMARY")
            free = {tuple(row) for row in await connection.execute(found.with_for_update(skip_locked=True))}
        return {job_id for job_id, number in wanted if (job_id, number) not in free}

    async def try_writing(self) -> None:
        """Write a row that is no job's to each table that decisions write, take them back, and find every table."""
        async with self._writing() as connection:
            now = await self._now(connection)
            await self._try_deciding(connection, now)
            row = {"job_id": self._no_job, "parked_at": None, "recovered_at": now, "retry_at": now, "reason": ""}
            await self._upsert(connection, row)
            await connection.execute(delete(parked_job).where(parked_job.c.job_id == self._no_job))
            for table in (job, trial, event, power_profile):
                await connection.execute(select(literal(1)).select_from(table).where(false()))

    async def _try_deciding(self, connection: AsyncConnection, now: datetime) -> None:
        with suppress(Conflict), translated():  # a lock of one job may cover the gap in which this row would stand
            for table in (job, trial):
                upsert = self._dialect.upsert(table, Updates(replaced=("job_id",)))
                await connection.execute(upsert, [self._row_of_no_job(table, now)])
            await connection.execute(insert(event), self._row_of_no_job(event, now))
        await connection.rollback()

    def _row_of_no_job(self, table: Table, now: datetime) -> dict[str, Any]:
        """A row with as little in it as the table allows."""
        wanted = [column for column in table.columns if not column.nullable and column.autoincrement is not True]
        row = {one.name: now if isinstance(one.type, Moment) else one.type.python_type() for one in wanted}
        ids = {"job_id": self._no_job, "command_id": self._no_job[1:]}
        return row | {name: ids[name] for name in ids.keys() & row.keys()}

    async def _upsert(self, connection: AsyncConnection, row: dict[str, Any]) -> None:
        await connection.execute(self._dialect.upsert(parked_job, _PARKED_AGAIN), [row])

    async def _now(self, connection: AsyncConnection) -> datetime:
        return (await connection.execute(select(self._dialect.clock()))).scalar_one()


def is_parked(job_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether a job is parked, or has recovered a short while ago."""
    return select(parked_job.c.job_id).where(parked_job.c.job_id == job_id).exists()
