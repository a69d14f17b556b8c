"""Connections to databases: pools, time limits, the settings that every session gets, and what goes wrong on them."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL, Connection, PoolProxiedConnection, event, make_url
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from bso.credentials import renewed
from bso.domain.errors import BsoError
from bso.service.errors import StoreLost, StoreUnavailable
from bso.storage.faults import fault_of
from bso.storage.handshakes import begin_connections
from bso.storage.packets import check_sessions
from bso.storage.urls import tls_of, without_tls

READS_ONLY = {"bso_reads_only": True}
"""Execution options of a connection that will not write: SQLite then takes no lock."""
BEGIN_IMMEDIATELY = "BEGIN IMMEDIATE"
"""How a transaction that writes begins on SQLite: a lock that is taken later could be refused at once."""
_USED_AT = "bso_used_at_s"
_OWN_POOLS = "bso"
_LOGGER_OF_POOLS = f"sqlalchemy.pool.impl.AsyncAdaptedQueuePool.{_OWN_POOLS}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How many connections at most, and how long one may wait for a connection, a lock, or a free one.

    A connection that has rested for ``rest_s`` is tried before it is used. The server gives up a transaction, and the
    locks in it, when its client has been silent for ``silence_s``: frozen, or gone without a word. MySQL cannot tell a
    transaction from a rest, and closes every session that is silent for so long: ``rest_s`` must be shorter.
    """

    pool_size: int = 8
    connect_s: float = 10.0
    lock_wait_s: float = 10.0
    checkout_s: float = 15.0
    recycle_s: float = 1800.0
    rest_s: float = 5.0
    silence_s: float = 10.0


PATIENT = ConnectionLimits(silence_s=600.0)
"""For commands of an operator, which may read a long log while they hold the lock of its job."""


@contextmanager
def connecting() -> Iterator[None]:
    """Raise the engine's error in place of whatever connecting raised: nothing has been asked of the database yet."""
    try:
        with translated():
            yield
    except StoreLost as error:
        raise StoreUnavailable(f"cannot reach the database: {error}") from error
    except BsoError:
        raise
    except Exception as error:
        raise StoreUnavailable(f"cannot reach the database: {type(error).__name__}: {error}") from error


@contextmanager
def translated() -> Iterator[None]:
    """Raise the engine's error in place of one that came from the database; in this block only its driver runs."""
    try:
        yield
    except Exception as error:
        fault = fault_of(error)
        if fault is None:
            raise
        raise fault from error


def opened(connection: AsyncConnection) -> PoolProxiedConnection:
    """The pooled connection under one of SQLAlchemy's that is open: asking for it would cost another greenlet."""
    assert connection.sync_connection is not None
    return connection.sync_connection.connection


def create_engine(url: URL, limits: ConnectionLimits) -> AsyncEngine:
    """An engine for a normalised address. Connects to nothing yet. Raises TlsFailed for files that cannot be used."""
    options: dict[str, Any] = {
        "pool_size": limits.pool_size,
        "max_overflow": 0,
        "pool_timeout": limits.checkout_s,
        "pool_recycle": limits.recycle_s,
        "pool_reset_on_return": None,  # closing rolls back what is open; after a commit it would be one more round trip
        "connect_args": _connect_args(url.get_backend_name(), limits),
        "hide_parameters": True,
        "pool_logging_name": _OWN_POOLS,
    }
    logging.getLogger(_LOGGER_OF_POOLS).addFilter(_is_news)
    if url.get_backend_name() == "sqlite":
        engine = create_async_engine(url, **options)
        _begin_immediately(engine, limits)
        _try_to_open(engine)
        return engine
    if url.get_backend_name() == "postgresql":
        options["isolation_level"] = "READ COMMITTED"
    engine = create_async_engine(without_tls(url), **options)
    begin_connections(engine, tls_of(url), deadline_s=limits.connect_s)
    _ping_after_a_rest(engine, limits)
    if url.get_backend_name() == "mysql":
        check_sessions(engine)
    return engine


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record of a pool is logged. A cancelled close is no error; its traceback would confuse a training."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def read_password_again(engine: AsyncEngine, address: str) -> None:
    """Have each new connection log in with the password that the file of the address holds at that moment."""

    @event.listens_for(engine.sync_engine, "do_connect")
    def _read(_dialect: object, _record: object, _arguments: object, options: dict[str, Any]) -> None:
        if "password" in options:
            options["password"] = make_url(renewed(address)).password


def _connect_args(backend: str, limits: ConnectionLimits) -> dict[str, Any]:
    if backend == "mysql":
        return {
            "charset": "utf8mb4",
            "init_command": _mysql_session(limits),
        }
    if backend == "postgresql":
        silence_ms = _ms(limits.silence_s)
        return {
            "server_settings": {
                "lock_timeout": _ms(limits.lock_wait_s),
                "idle_in_transaction_session_timeout": silence_ms,
                "tcp_user_timeout": silence_ms,  # of what the server sends to a client that is gone
                "timezone": "UTC",
                "application_name": "bso",
            },
        }
    return {"timeout": limits.lock_wait_s}


def _mysql_session(limits: ConnectionLimits) -> str:
    """What every session is set to, in one round trip; /*M! is read by MariaDB alone, /*!80000 by MySQL alone.

    It begins no transaction, so nothing has to be committed afterwards.
    """
    silence_s = max(1, int(limits.silence_s))
    return (
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_ZERO_DATE,NO_ZERO_IN_DATE', "
        f"time_zone = '+00:00', innodb_lock_wait_timeout = {max(1, int(limits.lock_wait_s))}, "
        f"autocommit = 0, net_read_timeout = {silence_s}, net_write_timeout = {silence_s} "
        f"/*M!100300 , tx_isolation = 'READ-COMMITTED', idle_transaction_timeout = {silence_s} */ "
        f"/*!80000 , transaction_isolation = 'READ-COMMITTED', wait_timeout = {silence_s} */"
    )


def _ms(seconds: float) -> str:
    return str(max(1, int(seconds * 1000)))


def _ping_after_a_rest(engine: AsyncEngine, limits: ConnectionLimits) -> None:
    """Where a connection was just used, a ping would be one more round trip; all uses of it survive its loss."""

    @event.listens_for(engine.sync_engine, "checkin")
    def _note(_connection: object, record: Any) -> None:
        record.info[_USED_AT] = time.monotonic()

    @event.listens_for(engine.sync_engine, "checkout")
    def _try(connection: Any, record: Any, _proxy: object) -> None:
        used_at_s = record.info.get(_USED_AT)
        if used_at_s is None or time.monotonic() - used_at_s < limits.rest_s:
            return
        try:
            engine.dialect.do_ping(connection)
        except Exception as error:  # whatever its driver says: a new connection serves as well
            raise InvalidatePoolError("the connection was lost while it rested") from error


def _try_to_open(engine: AsyncEngine) -> None:
    @event.listens_for(engine.sync_engine, "do_connect")
    def _open(_dialect: object, _record: object, arguments: tuple[Any, ...], _options: dict[str, Any]) -> None:
        # Where a file cannot be opened, aiosqlite leaves a thread that may complain when the event loop has ended.
        sqlite3.connect(arguments[0]).close()


def _begin_immediately(engine: AsyncEngine, limits: ConnectionLimits) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def _set_up(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver would begin transactions by rules of its own
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {int(limits.lock_wait_s * 1000)}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def _begin(connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        if driver.in_transaction:  # begun without SQLAlchemy, by a unit of work
            return
        reads_only = connection.get_execution_options().get("bso_reads_only", False)
        connection.exec_driver_sql("BEGIN" if reads_only else BEGIN_IMMEDIATELY)
