"""Where databases differ: column types, clock, upsert, index hints, and how a connection is set up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    DateTime,
    Double,
    Insert,
    Select,
    String,
    Table,
    Text,
    bindparam,
    func,
    literal_column,
)
from sqlalchemy import Dialect as SqlAlchemyDialect
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.types import TypeDecorator, TypeEngine

from bso.domain.identifiers import MAX_LENGTH

_MYSQL = ("mysql", "mariadb")


class Moment(TypeDecorator[datetime]):
    """A moment with microseconds: aware in Python, UTC without a zone in the database."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: SqlAlchemyDialect) -> TypeEngine[Any]:
        """DATETIME(6) where DATETIME alone would round to seconds."""
        if dialect.name in _MYSQL:
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime(timezone=False))

    def process_bind_param(self, value: datetime | None, dialect: SqlAlchemyDialect) -> datetime | None:
        """To UTC; a moment without a zone is a bug."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a moment needs a time zone, got {value!r}")
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: SqlAlchemyDialect) -> datetime | None:
        """From UTC."""
        return None if value is None else value.replace(tzinfo=UTC)


def ascii_text(length: int = MAX_LENGTH) -> TypeEngine[str]:
    """Short ASCII text, compared and sorted byte by byte."""
    return (
        String(length)
        .with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), *_MYSQL)
        .with_variant(String(length, collation="C"), "postgresql")
    )


def words(length: int) -> TypeEngine[str]:
    """Text of any language up to a length in characters."""
    return String(length).with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), *_MYSQL)


def long_text() -> TypeEngine[str]:
    """Text of any language and length, JSON included: kept character by character, never normalised."""
    return Text().with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), *_MYSQL)


def number() -> TypeEngine[float]:
    """A double: FLOAT columns lose digits. Never NaN or infinite, which MySQL refuses."""
    return Double().with_variant(mysql.DOUBLE(asdecimal=False), *_MYSQL)


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
    statement = postgresql.insert(table)
    assignments = _assignments(table, statement.excluded, updates)
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=assignments)


@cache
def _sqlite_upsert(table: Table, updates: Updates) -> Insert:
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
    return bindparam(None, callable_=lambda: datetime.now(UTC), type_=Moment())


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
