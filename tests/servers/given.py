"""Servers that the environment names, used instead of private ones."""

import asyncio
import os
import threading
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests.servers.waiting import PATIENCE_S

AMQP_URL = os.environ.get("BSO_TEST_AMQP_URL")
AMQP_MANAGEMENT_URL = os.environ.get("BSO_TEST_AMQP_MANAGEMENT_URL")
DATABASE_URL = os.environ.get("BSO_TEST_DATABASE_URL")
POSTGRES_URL = os.environ.get("BSO_TEST_POSTGRES_URL")


def create_database(server_url: str) -> str:
    """Create a database with a name never used before beside the one in the URL, and return the URL of it."""
    name = f"bso_{uuid4().hex[:12]}"
    _execute(server_url, f"CREATE DATABASE {name}")
    return sa.make_url(server_url).set(database=name).render_as_string(hide_password=False)


def drop_database(server_url: str, url: str) -> None:
    """Drop a database that create_database() made; connections that still use it are no reason to wait."""
    name = sa.make_url(url).database
    if sa.make_url(server_url).get_backend_name() == "postgresql":
        _execute(server_url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    else:
        _execute(server_url, "SET lock_wait_timeout = 10", f"DROP DATABASE IF EXISTS {name}")


def _execute(url: str, *statements: str) -> None:
    """Run the statements in a thread with a loop of its own: fixtures may be asked for while a loop runs."""
    failures: list[Exception] = []

    def work() -> None:
        try:
            asyncio.run(_execute_async(url, statements))
        except Exception as error:  # noqa: BLE001  handed over to the caller's thread
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE_S)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {PATIENCE_S:g} s: {statements}")
    if failures:
        raise failures[0]


async def _execute_async(url: str, statements: tuple[str, ...]) -> None:
    engine = create_async_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    try:
        async with engine.connect() as connection:
            for statement in statements:
                await connection.execute(sa.text(statement))
    finally:
        await engine.dispose()
