"""Units of work on SQLite: a frequent statement is one visit to the driver's thread, where SQLAlchemy makes four.

A transaction begins with the lock of the whole file. Other statements are SQLAlchemy's to execute, on the same
connection and in the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Executable
from sqlalchemy.ext.asyncio import AsyncConnection
from typing_extensions import override

from bso.storage import statements
from bso.storage.connections import BEGIN_IMMEDIATELY, opened, translated
from bso.storage.dialects import dialect_named
from bso.storage.rows import Row
from bso.storage.statement_text import CompiledStatement, CompiledStatements, Gap
from bso.storage.unit_of_work import SqlUnitOfWork

if TYPE_CHECKING:
    from aiosqlite import Connection

_DIALECT = dialect_named("sqlite")


class SqliteStatement(CompiledStatement):
    """A statement whose values the driver takes beside its text."""

    def with_values(self, parameters: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """The text and its values; a list stands for several."""
        text, values = [self.pieces[0]], list[Any]()
        for gap, piece in zip(self.gaps, self.pieces[1:], strict=True):
            marks, given = _marked(gap, gap.value_in(parameters))
            text += (marks, piece)
            values += given
        return "".join(text), values

    def of_row(self, row: Row) -> list[Any]:
        """The values of a row that is inserted."""
        return [gap.bind(row.get(gap.name)) for gap in self.gaps]


def _marked(gap: Gap, value: Any) -> tuple[str, Sequence[Any]]:
    if not isinstance(value, list):
        return "?", [gap.bind(value)]
    if value and isinstance(value[0], tuple):
        row = f"({','.join('?' * len(value[0]))})"
        return f"VALUES {','.join([row] * len(value))}", [each for one in value for each in one]
    return ",".join("?" * len(value)), [gap.bind(each) for each in value]  # SQLite knows the empty list


class SqliteUnitOfWork(SqlUnitOfWork):
    """A unit of work whose frequent statements go past SQLAlchemy's execution."""

    def __init__(
        self,
        connection: AsyncConnection,
        driver: Connection,
        compiled: CompiledStatements[SqliteStatement],
        *,
        has_outbox: bool,
    ) -> None:
        super().__init__(connection, _DIALECT, has_outbox=has_outbox)
        self._driver = driver
        self._compiled = compiled

    @classmethod
    def on(
        cls, connection: AsyncConnection, compiled: CompiledStatements[SqliteStatement], *, has_outbox: bool
    ) -> Self:
        """Begin one on a connection that is open."""
        driver: Any = opened(connection).driver_connection
        return cls(connection, driver, compiled, has_outbox=has_outbox)

    @override
    async def roll_back(self) -> None:
        if self._driver.in_transaction:
            with translated():
                await self._driver.rollback()

    @override
    async def _end(self) -> None:
        if self._connection.in_transaction():  # SQLAlchemy has executed some statement, and commits
            await super()._end()
        else:
            with translated():
                await self._driver.commit()

    @override
    async def _append(self, rows: Sequence[Row]) -> Mapping[tuple[str, int], int]:
        if len(rows) > 1:
            return await super()._append(rows)
        [row] = rows  # an epoch of one training: the database gives the key without being asked again
        compiled = self._compiled[statements.APPEND_EVENTS]
        with translated():
            await self._begin()
            found = await self._driver.execute_insert(compiled.text, compiled.of_row(row))
        assert found is not None
        return {(row["job_id"], row["seq"]): found[0]}

    @override
    async def _rows(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> Sequence[Row]:
        if parameters is None:
            return await super()._rows(statement)
        compiled = self._compiled[statement]
        with translated():
            await self._begin()
            return compiled.read(await self._driver.execute_fetchall(*compiled.with_values(parameters)))

    @override
    async def _run(self, statement: Executable, parameters: Sequence[Row] | None = None) -> None:
        if parameters is None:
            await super()._run(statement)
            return
        compiled = self._compiled[statement]
        with translated():
            await self._begin()
            await self._driver.executemany(compiled.text, [compiled.of_row(row) for row in parameters])

    async def _begin(self) -> None:
        if not self._driver.in_transaction:
            await self._driver.execute_fetchall(BEGIN_IMMEDIATELY)
