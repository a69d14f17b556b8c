"""Which of the engine's errors a database's error is."""

import sqlite3
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from sqlalchemy import exc

from bso.domain.errors import BsoError
from bso.service.errors import (
    Conflict,
    DatabaseMissing,
    SchemaMissing,
    StoreLoginRefused,
    StoreLost,
    StorePrivilegeMissing,
    StoreRefused,
    StoreUnavailable,
    StoreUnusable,
    Unstorable,
)
from bso.storage.connections import connecting, translated
from bso.storage.faults import fault_of


class MySQLError(Exception):
    """What asyncmy raises: a number and words."""


class PostgreSQLError(Exception):
    """What SQLAlchemy makes of asyncpg's errors: words, and the state as an attribute."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("words")
        self.sqlstate = sqlstate


def sqlite_error(name: str, words: str = "words") -> sqlite3.Error:
    """What sqlite3 raises."""
    error = sqlite3.OperationalError(words)
    error.sqlite_errorname = name
    return error


def wrapped(original: Exception, *, lost: bool = False) -> exc.DBAPIError:
    """As SQLAlchemy hands it on."""
    return exc.OperationalError("SELECT 1", {}, original, connection_invalidated=lost)


@pytest.mark.parametrize(
    ("original", "fault"),
    [
        (MySQLError(1213, "deadlock"), Conflict),
        (MySQLError(1205, "lock wait timeout"), Conflict),
        (MySQLError(1020, "record has changed"), Conflict),
        (MySQLError(1062, "duplicate"), Conflict),
        (MySQLError(2006, "gone away"), StoreLost),
        (MySQLError(2013, "lost"), StoreLost),
        (MySQLError(2003, "cannot connect"), StoreUnavailable),
        (MySQLError(1040, "too many connections"), StoreUnavailable),
        (MySQLError(1045, "access denied"), StoreLoginRefused),
        (MySQLError(1049, "unknown database"), DatabaseMissing),
        (MySQLError(1044, "access denied to the database"), StorePrivilegeMissing),
        (MySQLError(1142, "command denied"), StorePrivilegeMissing),
        (MySQLError(1143, "command denied on a column"), StorePrivilegeMissing),
        (MySQLError(1227, "access denied"), StorePrivilegeMissing),
        (MySQLError(1146, "no such table"), SchemaMissing),
        (MySQLError(1406, "too long"), Unstorable),
        (MySQLError(1264, "out of range"), Unstorable),
        (MySQLError(1153, "packet too large"), Unstorable),
        (MySQLError(1366, "incorrect"), Unstorable),
        (MySQLError(1114, "the table is full"), StoreRefused),
        (MySQLError(1290, "read-only"), StoreRefused),
        (MySQLError(1021, "disk full"), StoreRefused),
        (MySQLError(9999, "never heard of"), StoreRefused),
        (MySQLError("no number"), StoreRefused),
        (PostgreSQLError("40001"), Conflict),
        (PostgreSQLError("40P01"), Conflict),
        (PostgreSQLError("08006"), StoreLost),
        (PostgreSQLError("57P01"), StoreLost),
        (PostgreSQLError("53100"), StoreUnavailable),
        (PostgreSQLError("28P01"), StoreLoginRefused),
        (PostgreSQLError("3D000"), DatabaseMissing),
        (PostgreSQLError("42501"), StorePrivilegeMissing),
        (PostgreSQLError("3F000"), StorePrivilegeMissing),
        (PostgreSQLError("42P01"), SchemaMissing),
        (PostgreSQLError("22001"), Unstorable),
        (PostgreSQLError("25006"), StoreRefused),
        (sqlite_error("SQLITE_BUSY"), Conflict),
        (sqlite_error("SQLITE_BUSY_SNAPSHOT"), Conflict),
        (sqlite_error("SQLITE_ERROR", "no such table: job"), SchemaMissing),
        (sqlite_error("SQLITE_ERROR", "something else"), StoreRefused),
        (sqlite_error("SQLITE_TOOBIG"), Unstorable),
        (sqlite_error("SQLITE_FULL"), StoreRefused),
        (sqlite_error("SQLITE_READONLY"), StoreUnusable),
        (sqlite_error("SQLITE_NOTADB"), StoreUnusable),
        (sqlite_error("SQLITE_CANTOPEN_ISDIR"), StoreUnusable),
        (sqlite_error("SQLITE_IOERR_WRITE"), StoreRefused),
        (sqlite_error("SQLITE_CORRUPT"), StoreUnusable),
    ],
)
def test_a_code_tells_what_has_to_be_done(original: Exception, fault: type[BsoError]) -> None:
    assert type(fault_of(wrapped(original))) is fault


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (wrapped(MySQLError("Connection reset"), lost=True), StoreLost),
        (exc.InterfaceError("SELECT 1", {}, MySQLError("(0, 'Not connected')")), StoreLost),
        (exc.TimeoutError("pool"), StoreUnavailable),
        (exc.StatementError("(builtins.ValueError) naive", "INSERT", {}, ValueError("naive")), Unstorable),
        (exc.InvalidRequestError("a bug"), StoreRefused),
        (OverflowError("Python int too large to convert to SQLite INTEGER"), Unstorable),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), Unstorable),
    ],
)
def test_errors_without_a_code_are_told_by_their_kind(error: Exception, fault: type[BsoError]) -> None:
    assert type(fault_of(error)) is fault


@pytest.mark.parametrize("block", [translated, connecting])
def test_errors_of_ours_pass_as_they_are(block: Callable[[], AbstractContextManager[None]]) -> None:
    error = Conflict("already ours")
    with pytest.raises(Conflict) as raised, block():
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    "error",
    [
        BrokenPipeError(32, "broken pipe"),
        ConnectionRefusedError(111, "refused"),
        RuntimeError("Transport does not expose socket instance"),
        struct.error("unpack requires a buffer of 2 bytes"),
        EOFError(),
    ],
)
def test_whatever_else_a_driver_raises_means_that_the_database_is_away(error: Exception) -> None:
    with pytest.raises(StoreUnavailable, match=type(error).__name__), connecting():
        raise error
    with pytest.raises(StoreLost, match=type(error).__name__), translated():
        raise error


def test_an_answer_that_is_no_databases_means_that_it_cannot_be_reached() -> None:
    with pytest.raises(StoreUnavailable, match="KeyError: 72"), connecting():
        raise KeyError(ord("H"))


def test_errors_of_programs_pass_as_they_are() -> None:
    with pytest.raises(ValueError, match="a bug"), translated():
        raise ValueError("a bug")


@pytest.mark.parametrize(("code", "hint"), [(1146, "bso migrate"), (1045, "user, password")])
def test_an_operator_is_told_what_to_do(code: int, hint: str) -> None:
    with pytest.raises(BsoError, match=hint) as raised, translated():
        raise wrapped(MySQLError(code, "words of the server"))
    assert "words of the server" in str(raised.value)
    cause: Any = raised.value.__cause__
    assert isinstance(cause, exc.DBAPIError)
