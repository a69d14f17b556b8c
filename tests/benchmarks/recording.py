"""Recording the statements of a store, and sending the very same ones through the bare driver."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import asyncmy
from sqlalchemy import Connection, event, make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from bso.storage import SqlStore
from bso.storage.mysql import Requests

TABLES = ("job", "trial", "event", "power_profile", "bso_log_epoch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement as it went to the driver, or several at once; "COMMIT" where SQLAlchemy has committed."""

    text: str
    parameters: Any = ()
    is_many: bool = False


COMMIT = Statement(text="COMMIT")


@asynccontextmanager
async def recorded(store: SqlStore) -> AsyncIterator[list[Statement]]:
    """What the store executes inside ``with``."""
    engine = store.engine.sync_engine
    statements: list[Statement] = []
    if engine.dialect.name == "sqlite":
        async with _traced(store.engine, lambda text: statements.append(Statement(text=text))):
            yield statements
        return

    def executed(
        _connection: Connection, _cursor: Any, text: str, parameters: Any, _context: Any, is_many: bool
    ) -> None:
        statements.append(Statement(text=text, parameters=parameters, is_many=is_many))

    def committed(_connection: Connection) -> None:
        statements.append(COMMIT)

    async def sent(requests: Requests, texts: Sequence[str]) -> list[Sequence[Sequence[Any]]]:
        statements.append(Statement(text=";".join(texts)))
        return await send(requests, texts)

    event.listen(engine, "before_cursor_execute", executed)
    event.listen(engine, "commit", committed)
    send = Requests.send
    try:
        with patch.object(Requests, "send", sent):
            yield statements
    finally:
        event.remove(engine, "before_cursor_execute", executed)
        event.remove(engine, "commit", committed)


@asynccontextmanager
async def _traced(engine: AsyncEngine, note: Callable[[str], None]) -> AsyncIterator[None]:
    """Note what SQLite executes, values filled in: most of it goes past SQLAlchemy."""
    callback: Callable[[str], None] | None = note

    def taken(connection: Any, *_: object) -> None:
        connection.run_async(lambda driver: driver.set_trace_callback(callback))

    event.listen(engine.sync_engine, "checkout", taken)
    try:
        yield
    finally:
        callback = None
        async with engine.connect():  # the connection that was traced: no other one was needed
            event.remove(engine.sync_engine, "checkout", taken)


class BareMariaDB:
    """One connection of asyncmy, without SQLAlchemy."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url)

    async def replay(self, statements: Sequence[Statement]) -> None:
        """Send the statements, in transactions as recorded, and fetch what they select."""
        for statement in statements:
            await self._send(statement)

    async def open(self) -> None:
        """Connect."""
        url = self._url
        self._connection = await asyncmy.connect(
            host=url.host, port=url.port or 3306, user=url.username, password=url.password or "", db=url.database
        )
        self._cursor = self._connection.cursor()
        await self._cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    async def close(self) -> None:
        """Disconnect."""
        await self._cursor.close()
        self._connection.close()

    async def _send(self, statement: Statement) -> None:
        if statement is COMMIT:
            await self._connection.commit()
        elif statement.is_many:
            await self._cursor.executemany(statement.text, statement.parameters)
        else:
            await self._cursor.execute(statement.text, statement.parameters or None)
            while True:
                await self._cursor.fetchall()
                if not await self._cursor.nextset():
                    break


class BareSQLite:
    """One connection of sqlite3, in this thread."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def open(self) -> None:
        """Open the file, as durable as the store does."""
        self._connection = sqlite3.connect(self._path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")

    async def replay(self, statements: Sequence[Statement]) -> None:
        """Execute the statements, in transactions as recorded, and fetch what they select."""
        for statement in statements:
            if statement.is_many:
                self._connection.executemany(statement.text, statement.parameters)
            else:
                self._connection.execute(statement.text, statement.parameters).fetchall()

    async def close(self) -> None:
        """Close the file."""
        self._connection.close()
