"""The table of the log's epoch: one row, read with every decision."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import CursorResult, Executable, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from bso.domain.log import FIRST_EPOCH
from bso.service.errors import StoreLost
from bso.service.log_epochs import looked_at, next_number
from bso.service.records import LogEpoch
from bso.storage.dialects import Dialect
from bso.storage.rows import Row
from bso.storage.tables import event, log_epoch

_EPOCH = select(log_epoch)


class SqlLogEpochs:
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

    async def current(self) -> LogEpoch | None:
        """The epoch; None where the row is missing."""
        rows = await self._read(_EPOCH)
        return LogEpoch(**rows[0]) if rows else None

    async def look(self, problem: Callable[[LogEpoch | None], str | None]) -> LogEpoch | None:
        """Record that somebody looked, or, where ``problem`` finds one, that the database is outdated.

        The row is locked meanwhile, so this is never what a replica holds that lags behind. Where another transaction
        holds it, nobody waits: the row is only read. A second look, where a connection turns out to have been lost
        since it was used.
        """
        try:
            return await self._look(problem)
        except StoreLost:
            return await self._look(problem)

    async def begin(self) -> LogEpoch:
        """Begin another epoch."""
        async with self._writing() as connection:
            return await begin_epoch(connection, self._dialect)

    async def _look(self, problem: Callable[[LogEpoch | None], str | None]) -> LogEpoch | None:
        async with self._writing() as connection:
            found = _epoch_in(await connection.execute(_EPOCH.with_for_update(skip_locked=True)))
            if found is None:
                return _epoch_in(await connection.execute(_EPOCH))
            now = await _now(connection, self._dialect)
            after = looked_at(found, problem=problem(found), now=now)
            await connection.execute(update(log_epoch).values(**asdict(after)))
            return after


async def begin_epoch(connection: AsyncConnection, dialect: Dialect, *, above: int = 0) -> LogEpoch:
    """Begin another epoch, with a number above this one, in a transaction that somebody else commits."""
    found = await _locked(connection)
    highest = (await connection.execute(select(func.max(event.c.event_id)))).scalar()
    now = await _now(connection, dialect)
    known = (FIRST_EPOCH if found is None else found.number, highest or 0, above)
    begun = LogEpoch(number=next_number(now, above=max(known)), looked_at=now)
    await connection.execute(delete(log_epoch))
    await connection.execute(insert(log_epoch), asdict(begun))
    await _raise_event_ids(connection, dialect, begun.number, now)
    return begun


async def begin_epoch_after(connection: AsyncConnection, dialect: Dialect, *, newest: int) -> None:
    """Begin another epoch if events of an epoch that is not over here, ``newest``, come from another log."""
    found = await _locked(connection)
    if found is None or found.number <= newest:
        await begin_epoch(connection, dialect, above=newest)


async def _raise_event_ids(connection: AsyncConnection, dialect: Dialect, number: int, now: datetime) -> None:
    """Let the database count on from here, by a statement that a worker's login may execute."""
    if dialect.has_sequences:
        sequence = func.pg_get_serial_sequence(event.name, event.c.event_id.name)
        await connection.execute(select(func.setval(sequence, number)))
        return
    nobody = str(uuid.uuid4())
    texts = dict.fromkeys(("job_id", "command_id"), nobody) | dict.fromkeys(("type", "payload"), "")
    numbers = {"event_id": number, "log_epoch": number, "seq": 0, "part": 0}
    row = {**numbers, **texts, "recorded_at": now, "published_at": now}
    await connection.execute(insert(event), row)
    await connection.execute(delete(event).where(event.c.event_id == number))


async def _locked(connection: AsyncConnection) -> LogEpoch | None:
    return _epoch_in(await connection.execute(_EPOCH.with_for_update()))


def _epoch_in(result: CursorResult[Any]) -> LogEpoch | None:
    row = result.mappings().one_or_none()
    return None if row is None else LogEpoch(**row)


async def _now(connection: AsyncConnection, dialect: Dialect) -> datetime:
    return (await connection.execute(select(dialect.clock()))).scalar_one()
