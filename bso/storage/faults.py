"""What a database's error means: which of the engine's errors it is."""

from __future__ import annotations

import sqlite3
import struct

from sqlalchemy.exc import DBAPIError, InterfaceError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from bso.domain.errors import BsoError
from bso.service.errors import (
    CommandTaken,
    Conflict,
    DatabaseMissing,
    EventIdsReused,
    SchemaMissing,
    SequenceTaken,
    StoreLoginRefused,
    StoreLost,
    StorePrivilegeMissing,
    StoreRefused,
    StoreUnavailable,
    StoreUnusable,
    Unstorable,
)

_Kind = type[BsoError]

# https://dev.mysql.com/doc/mysql-errors/en/server-error-reference.html
_MYSQL: dict[int, _Kind] = {
    1205: Conflict,  # lock wait timeout: rolls back only the statement
    1213: Conflict,  # deadlock
    1020: Conflict,  # record has changed since last read (MariaDB, innodb_snapshot_isolation)
    1062: Conflict,  # duplicate key: a rival recorded the same command between our look and our insert
    3572: Conflict,  # lock not available
    1690: EventIdsReused,  # out of range: the sum by which MySqlUnitOfWork stops such a transaction
    1053: StoreLost,  # server shutdown in progress
    1317: StoreLost,  # query interrupted by KILL QUERY
    1927: StoreLost,  # connection was killed (MariaDB)
    1159: StoreLost,  # timeout reading communication packets: net_read_timeout
    1161: StoreLost,  # timeout writing communication packets: net_write_timeout
    2006: StoreLost,  # server has gone away
    2013: StoreLost,  # lost connection during query
    2014: StoreLost,  # commands out of sync: the connection is beyond use
    2055: StoreLost,  # lost connection, with a system error
    3169: StoreLost,  # session was killed
    4031: StoreLost,  # disconnected because of inactivity
    1040: StoreUnavailable,  # too many connections
    1129: StoreUnavailable,  # host is blocked because of many connection errors
    1203: StoreUnavailable,  # user has too many connections
    1226: StoreUnavailable,  # user has exceeded a resource
    2002: StoreUnavailable,  # cannot connect through socket
    2003: StoreUnavailable,  # cannot connect
    2005: StoreUnavailable,  # unknown host: may be a name service that is away
    1044: StorePrivilegeMissing,  # access denied to the database, which need not exist
    1045: StoreLoginRefused,  # access denied
    1049: DatabaseMissing,  # unknown database
    1142: StorePrivilegeMissing,  # command denied on a table
    1143: StorePrivilegeMissing,  # command denied on a column
    1227: StorePrivilegeMissing,  # a privilege of administrators is needed
    1698: StoreLoginRefused,  # access denied: no password accepted for this user
    1054: SchemaMissing,  # unknown column
    1146: SchemaMissing,  # no such table
    1153: Unstorable,  # a packet larger than max_allowed_packet; more often the server just cuts the connection
    1264: Unstorable,  # out of range
    1265: Unstorable,  # data truncated
    1292: Unstorable,  # wrong value
    1300: Unstorable,  # invalid character string
    1366: Unstorable,  # incorrect value
    1367: Unstorable,  # illegal value while parsing
    1406: Unstorable,  # data too long
    3140: Unstorable,  # invalid JSON text
    3988: Unstorable,  # conversion from one collation to another is impossible
    4025: Unstorable,  # constraint failed (MariaDB)
}

# https://www.postgresql.org/docs/current/errcodes-appendix.html; two digits stand for the class
_POSTGRESQL: dict[str, _Kind] = {
    "40001": Conflict,
    "40P01": Conflict,
    "55P03": Conflict,
    "23505": Conflict,
    "08": StoreLost,
    "57P01": StoreLost,
    "57P02": StoreLost,
    "57014": StoreLost,
    "57P03": StoreUnavailable,
    "57P05": StoreLost,
    "25P03": StoreLost,  # idle_in_transaction_session_timeout
    "53": StoreUnavailable,
    "28": StoreLoginRefused,
    "3D000": DatabaseMissing,
    "42501": StorePrivilegeMissing,
    "3F000": StorePrivilegeMissing,  # no schema to create in: none of the search path may be used
    "42P01": SchemaMissing,
    "42703": SchemaMissing,
    "22": Unstorable,
    "23": Unstorable,
}

_SQLITE: dict[str, _Kind] = {
    "SQLITE_BUSY": Conflict,
    "SQLITE_LOCKED": Conflict,
    "SQLITE_CONSTRAINT_UNIQUE": Conflict,
    "SQLITE_CONSTRAINT_PRIMARYKEY": Conflict,
    "SQLITE_CONSTRAINT": Unstorable,
    "SQLITE_NOTADB": StoreUnusable,
    "SQLITE_CORRUPT": StoreUnusable,
    "SQLITE_CANTOPEN": StoreUnusable,
    "SQLITE_READONLY": StoreUnusable,
    "SQLITE_PERM": StoreUnusable,
    "SQLITE_TOOBIG": Unstorable,
    "SQLITE_MISMATCH": Unstorable,
}

_HINTS: dict[_Kind, str] = {
    SchemaMissing: "the tables are missing or older than this program, run `bso migrate`: ",
    StoreUnusable: "the database file cannot be used: ",
    DatabaseMissing: "the server has no such database, create it or correct its name in the address: ",
    StoreLoginRefused: "the database refused the login, check user, password and name of the database: ",
    StorePrivilegeMissing: "the login of the database lacks a privilege: ",
}

_LOG_KEY = ("uq_event_job_seq", "event.job_id, event.seq")
"""What servers, and SQLite, call the key of a job's log when something stands there already."""
_COMMAND_KEY = ("uq_event_command_part", "event.command_id, event.part")
"""What they call the key of a command's events."""
_IN_THE_DATA = (UnicodeError, OverflowError)
"""What a driver raises when it cannot express a value."""
_OF_THE_WIRE = (OSError, EOFError, RuntimeError, AttributeError, IndexError, struct.error)
"""What drivers raise, besides errors of their own, when the server goes away in the middle of something."""


def fault_of(error: BaseException) -> BsoError | None:
    """The engine's error for one that came from the database or its driver; None for any other."""
    if isinstance(error, BsoError):
        return None
    if isinstance(error, DBAPIError):
        return _fault(_kind_of(error), error.orig)
    if type(error).__module__ == "asyncmy.errors":  # raised by the driver itself, below SQLAlchemy
        return _fault(_by_mysql(error) or (StoreRefused if _is_of_server(error) else StoreLost), error)
    if isinstance(error, sqlite3.Error):
        return _fault(_by_sqlite(error) or StoreRefused, error)
    if isinstance(error, PoolTimeout):
        return StoreUnavailable("all connections to the database are in use")
    if isinstance(error, StatementError):
        cause = error.orig if error.orig is not None else error
        return Unstorable(f"a value cannot be stored: {cause}")
    if isinstance(error, SQLAlchemyError):
        return StoreRefused(str(error))
    if isinstance(error, _IN_THE_DATA):
        return Unstorable(f"a value cannot be stored: {_named(error)}")
    if isinstance(error, _OF_THE_WIRE):
        return StoreLost(f"the connection to the database broke: {_named(error)}")
    return None


def words_of(original: BaseException | None) -> str:
    """What a driver's error says."""
    text = ", ".join(map(str, original.args)) if original is not None and original.args else str(original)
    return text[:500]


def _fault(kind: _Kind, original: BaseException | None) -> BsoError:
    if kind is Conflict and any(name in str(original) for name in _LOG_KEY):
        kind = SequenceTaken
    elif kind is Conflict and any(name in str(original) for name in _COMMAND_KEY):
        kind = CommandTaken
    return kind(f"{_HINTS.get(kind, '')}{words_of(original)}")


def _kind_of(error: DBAPIError) -> _Kind:
    original = error.orig
    found = _by_mysql(original) or _by_postgresql(original) or _by_sqlite(original)
    if found is not None:
        return found
    if error.connection_invalidated or isinstance(error, InterfaceError):
        return StoreLost
    return StoreRefused


def _by_mysql(original: BaseException | None) -> _Kind | None:
    code = original.args[0] if original is not None and original.args else None
    return _MYSQL.get(code) if isinstance(code, int) else None


def _is_of_server(error: BaseException) -> bool:
    """Whether a MySQL server has sent this error; the driver's own begin with 2000: the connection is beyond use."""
    code = error.args[0] if error.args else None
    return isinstance(code, int) and not 2000 <= code < 3000


def _by_postgresql(original: BaseException | None) -> _Kind | None:
    code = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    if not isinstance(code, str):
        return None
    return _POSTGRESQL.get(code) or _POSTGRESQL.get(code[:2])


def _by_sqlite(original: BaseException | None) -> _Kind | None:
    name = getattr(original, "sqlite_errorname", None)
    if not isinstance(name, str):
        return None
    if name == "SQLITE_ERROR" and "no such" in str(original):
        return SchemaMissing
    family = "_".join(name.split("_")[:2])
    return _SQLITE.get(name) or _SQLITE.get(family)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
