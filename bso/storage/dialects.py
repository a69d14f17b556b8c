"""Where the SQL of databases differs: clock, upsert, index hints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

from sqlalchemy import ColumnElement, Insert, Select, Table, bindparam, func, literal_column
from sqlalchemy.dialects import mysql

from bso.storage.rows import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """What an upsert does to a row that exists, by column."""

    replaced: tuple[str, ...]
    kept_if_null: tuple[str, ...] = ()
    first_stays: tuple[str, ...] = ()

    @classmethod
    def of_whole_rows(cls, table: Table) -> Updates:
        """Everything is replaced but the key."""
        return cls(replaced=tuple(column.name for column in table.columns if not column.primary_key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What is said differently to one kind of database."""

    name: str
    clock: Callable[[], ColumnElement[datetime]]
    upsert: Callable[[Table, Updates], Insert]
    hints_indexes: bool = False
    has_sequences: bool = False
    """Rows are numbered by a sequence, which does not notice a number that a row brings along."""
    at_one_moment: tuple[tuple[str, str], ...] = ()
    """Options of a connection on which all reads of a transaction see the same moment."""

    def by_index(self, statement: Select[*tuple[Any, ...]], table: Table, index: str) -> Select[*tuple[Any, ...]]:
        """The statement, led through an index where the optimizer might prefer to scan what looks small.

        A scan would wait for locked rows that nobody asked for, and read all ended trials of a job.
        """
        return statement.with_hint(table, f"FORCE INDEX ({index})", self.name) if self.hints_indexes else statement


def dialect_named(name: str) -> Dialect:
    """The differences of SQLAlchemy's dialect ``mysql`` (also MariaDB), ``postgresql`` or ``sqlite``."""
    return _DIALECTS[name]


@cache
def _mysql_upsert(table: Table, updates: Updates) -> Insert:
    statement = mysql.insert(table)
    return statement.on_duplicate_key_update(_assignments(table, statement.inserted, updates))


@cache
def _postgresql_upsert(table: Table, updates: Updates) -> Insert:
    from sqlalchemy.dialects import postgresql  # 0.1 s, and loaded already where such a database is used

    statement = postgresql.insert(table)
    assignments = _assignments(table, statement.excluded, updates)
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=assignments)


@cache
def _sqlite_upsert(table: Table, updates: Updates) -> Insert:
    from sqlalchemy.dialects import sqlite

    statement = sqlite.insert(table)
    assignments = _assignments(table, statement.excluded, updates)
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=assignments)


def _assignments(table: Table, incoming: Any, updates: Updates) -> dict[str, ColumnElement[Any]]:
    replaced = {name: incoming[name] for name in updates.replaced}
    kept = {name: func.coalesce(incoming[name], table.c[name]) for name in updates.kept_if_null}
    first = {name: func.coalesce(table.c[name], incoming[name]) for name in updates.first_stays}
    return {**replaced, **kept, **first}


def _mysql_clock() -> ColumnElement[datetime]:
    return literal_column("UTC_TIMESTAMP(6)", Moment())


def _postgresql_clock() -> ColumnElement[datetime]:
    return literal_column("(clock_timestamp() AT TIME ZONE 'UTC')", Moment())


def _sqlite_clock() -> ColumnElement[datetime]:
    # SQLite runs in this process: its clock is ours, read whenever the statement is executed.
    return bindparam(None, callable_=partial(datetime.now, UTC), type_=Moment())


_REPEATABLE = (("isolation_level", "REPEATABLE READ"),)
_DIALECTS = {
    "mysql": Dialect(
        name="mysql", clock=_mysql_clock, upsert=_mysql_upsert, hints_indexes=True, at_one_moment=_REPEATABLE
    ),
    "postgresql": Dialect(
        name="postgresql",
        clock=_postgresql_clock,
        upsert=_postgresql_upsert,
        has_sequences=True,
        at_one_moment=_REPEATABLE,
    ),
    "sqlite": Dialect(name="sqlite", clock=_sqlite_clock, upsert=_sqlite_upsert),
}
