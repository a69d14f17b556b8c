"""One upgrade at a time, however many processes start together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from bso.storage.connections import translated
from bso_migrations.errors import UpgradeInProgress

_PAUSE_S = 0.25

# Both locks belong to the session: a process that dies gives them up.
_TAKE: dict[str, TextClause] = {
    "mysql": text("SELECT GET_LOCK(CONCAT('bso.migrations.', LEFT(SHA2(DATABASE(), 256), 16)), 0)"),
    "postgresql": text("SELECT CASE WHEN pg_try_advisory_lock(6452079) THEN 1 ELSE 0 END"),
}
_RELEASE: dict[str, TextClause] = {
    "mysql": text("SELECT RELEASE_LOCK(CONCAT('bso.migrations.', LEFT(SHA2(DATABASE(), 256), 16)))"),
    "postgresql": text("SELECT pg_advisory_unlock(6452079)"),
}


@asynccontextmanager
async def upgrade_lock(
    connection: AsyncConnection, deadline: float, progress: Callable[[str], None]
) -> AsyncIterator[None]:
    """Hold the lock of the upgrade. Raises UpgradeInProgress if another holds it until ``deadline`` (loop time).

    On SQLite the transaction is the lock, and the whole upgrade is one transaction: BEGIN IMMEDIATE waits for others.
    """
    backend = connection.dialect.name
    if backend not in _TAKE:
        with translated():
            await connection.begin()
        yield
        return
    await _take(connection, _TAKE[backend], deadline, progress)
    try:
        yield
    finally:
        if not connection.closed and not connection.invalidated:
            await connection.rollback()
            await connection.execute(_RELEASE[backend])


async def _take(
    connection: AsyncConnection, statement: TextClause, deadline: float, progress: Callable[[str], None]
) -> None:
    loop = asyncio.get_running_loop()
    is_announced = False
    while not await _is_taken(connection, statement):
        if loop.time() >= deadline:
            raise UpgradeInProgress("another process is upgrading the schema and has not finished in time")
        if not is_announced:
            progress("waiting for another process that is upgrading the schema")
            is_announced = True
        await asyncio.sleep(_PAUSE_S)


async def _is_taken(connection: AsyncConnection, statement: TextClause) -> bool:
    with translated():
        taken = (await connection.execute(statement)).scalar()
        await connection.commit()
    return taken == 1
