"""Upgrade a database, or say what state it is in."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import URL, Column, Connection, MetaData, String, Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from bso.domain.errors import Retryable
from bso.private_files import make_file, make_folders
from bso.service.errors import StoreNotReady
from bso.service.records import SchemaState, SchemaStatus
from bso.storage.connections import ConnectionLimits, connecting, create_engine, translated
from bso.storage.errors import BadDatabaseUrl
from bso.storage.filesystems import require_local
from bso.storage.schema import VERSION_TABLE, schema_state
from bso.storage.tables import metadata
from bso.storage.urls import database_url, shown, sqlite_path
from bso_migrations.errors import DatabaseStillAway, UpgradeInProgress
from bso_migrations.lock import upgrade_lock
from bso_migrations.privileges import naming_access, naming_privileges

HEAD = "head"
_PAUSE_S = 0.25
_DDL_S = 3600.0
_ALEMBIC = threading.Lock()
_ANSWER_S = 10.0
_LIMITS = ConnectionLimits(pool_size=1, connect_s=5.0, silence_s=_DDL_S)
_DIALECTS = {"mysql": "mysql", "mariadb": "mysql", "postgresql": "postgresql", "sqlite": "sqlite"}

Progress = Callable[[str], None]


def _silent(_sentence: str) -> None:
    """Say nothing."""


async def upgrade(url: str, *, timeout_s: float = 60.0, progress: Progress = _silent) -> SchemaState:
    """Bring a database to the newest revision; nothing happens where it is there already.

    Waits up to ``timeout_s`` for the database to answer and for others who upgrade it. ``progress`` gets a sentence
    per step. Raises DatabaseStillAway, UpgradeInProgress, Misconfigured, or StoreNotReady where a newer release has
    been here.
    """
    async with _opened(url, timeout_s, progress) as connection:
        state = await schema_state(connection)
        if state.status is SchemaStatus.NEWER:
            raise StoreNotReady(
                f"the schema is {state.found}, this program knows {state.expected}: upgrade the program"
            )
        if state.status is SchemaStatus.CURRENT:
            progress(f"the schema is up to date ({state.found})")
            return state
        await _make_version_table(connection)
        progress(f"upgrading the schema from {state.found or 'nothing'} to {state.expected}")
        await _migrate(connection, lambda config: command.upgrade(config, HEAD), timeout_s=timeout_s)
        progress(f"the schema is now {state.expected}")
        return await schema_state(connection)


async def current(url: str, *, timeout_s: float = 10.0) -> SchemaState:
    """Which revision a database has."""
    engine = _engine(url)
    try:
        async with asyncio.timeout(timeout_s):
            with translated():
                async with engine.connect() as connection:
                    return await schema_state(connection)
    except TimeoutError as error:
        raise DatabaseStillAway(f"{_shown(url)} did not answer within {timeout_s:g} s") from error
    finally:
        await engine.dispose()


async def check(url: str, *, timeout_s: float = 60.0) -> tuple[str, ...]:
    """How the tables of a database differ from those that this program expects; empty if they do not."""
    async with _opened(url, timeout_s, _silent) as connection:
        differences = await connection.run_sync(_differences)
        return tuple(map(str, differences))


def sql(dialect: str) -> str:
    """The statements of an upgrade from nothing, for a database that bso may not change itself. Needs no database.

    ``dialect`` is mysql, mariadb, postgresql or sqlite.
    """
    if dialect not in _DIALECTS:
        raise BadDatabaseUrl(f"there is no SQL for {dialect!r}; known are {', '.join(_DIALECTS)}")
    buffer = io.StringIO()
    command.upgrade(_config(buffer, dialect=_DIALECTS[dialect]), HEAD, sql=True)
    return buffer.getvalue()


async def _make_version_table(connection: AsyncConnection) -> None:
    """Make Alembic's table as Alembic would, but without a name for its key: MySQL ignores that name with a warning."""
    table = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32), primary_key=True))
    with translated():
        await connection.run_sync(table.create, checkfirst=True)


async def _migrate(connection: AsyncConnection, run: Callable[[Config], None], *, timeout_s: float) -> None:
    def migrate(sync_connection: Connection) -> None:
        run(_config(io.StringIO(), connection=sync_connection))

    if connection.dialect.name != "sqlite":
        await connection.commit()  # Alembic then makes every revision a transaction of its own
    async with _alone(timeout_s):
        with translated():
            await connection.run_sync(migrate)
            await connection.commit()


@asynccontextmanager
async def _alone(timeout_s: float) -> AsyncIterator[None]:
    """One upgrade at a time in this process, whatever its thread or task: Alembic's context is the whole process'."""
    try:
        async with asyncio.timeout(timeout_s):
            while not _ALEMBIC.acquire(blocking=False):  # noqa: ASYNC110 - tasks of other event loops hold it, too
                await asyncio.sleep(_PAUSE_S / 5)
    except TimeoutError as error:
        raise UpgradeInProgress("this process is upgrading another database and has not finished in time") from error
    try:
        yield
    finally:
        _ALEMBIC.release()


@asynccontextmanager
async def _opened(url: str, timeout_s: float, progress: Progress) -> AsyncIterator[AsyncConnection]:
    """A connection to a database that answers, holding the lock of the upgrade."""
    engine = _engine(url)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    try:
        connection = await _connected(engine, deadline, _shown(url), progress)
        try:
            async with (
                asyncio.timeout(_DDL_S),
                upgrade_lock(connection, deadline, progress),
                naming_privileges(connection),
            ):
                yield connection
        finally:
            await connection.close()
    finally:
        await engine.dispose()


async def _connected(engine: AsyncEngine, deadline: float, name: str, progress: Progress) -> AsyncConnection:
    loop = asyncio.get_running_loop()
    is_announced = False
    while True:
        try:
            async with asyncio.timeout(min(_ANSWER_S, max(_PAUSE_S, deadline - loop.time()))):
                return await _try_to_connect(engine)
        except (Retryable, TimeoutError) as error:
            if loop.time() >= deadline:
                raise DatabaseStillAway(f"{name} does not answer: {error}") from error
            if not is_announced:
                progress(f"waiting for {name}: {error}")
                is_announced = True
            await asyncio.sleep(_PAUSE_S)


async def _try_to_connect(engine: AsyncEngine) -> AsyncConnection:
    async with naming_access(engine.url):
        with connecting():
            return await engine.connect()


def _differences(connection: Connection) -> list[Any]:
    options = {"version_table": VERSION_TABLE, "compare_type": True}
    context = MigrationContext.configure(connection, opts={**options, "include_object": _is_ours})
    return list(compare_metadata(context, metadata))


def _is_ours(_object: Any, name: str | None, kind: str, _reflected: bool, _compare_to: Any) -> bool:  # noqa: FBT001 - Alembic's signature
    return kind != "table" or name in metadata.tables


def _config(buffer: io.StringIO, **attributes: Any) -> Config:
    config = Config(output_buffer=buffer, stdout=io.StringIO())
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(attributes)
    return config


def _engine(url: str) -> AsyncEngine:
    address = database_url(url)
    if address.get_backend_name() == "sqlite":
        path = sqlite_path(address)
        require_local(path)
        make_folders(path.parent)
        make_file(path)  # SQLite gives the files beside it the same rights
    return create_engine(address, _LIMITS)


def _shown(url: str) -> str:
    address: URL = database_url(url)
    return shown(address)
