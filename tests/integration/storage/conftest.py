"""Databases with tables in them."""

from collections.abc import AsyncIterator, Callable

import pytest

from bso.storage import SqlStore, open_store
from bso.storage.connections import ConnectionLimits
from bso_migrations import upgrade

LIMITS = ConnectionLimits()

OpenAt = Callable[..., SqlStore]


@pytest.fixture
async def migrated_url(database_url: str) -> str:
    """A database of each kind in turn, with tables and no rows."""
    await upgrade(database_url)
    return database_url


@pytest.fixture
async def open_at() -> AsyncIterator[OpenAt]:
    """Opens stores, and closes them after the test."""
    opened: list[SqlStore] = []

    def open_one(url: str, limits: ConnectionLimits = LIMITS) -> SqlStore:
        opened.append(open_store(url, limits=limits))
        return opened[-1]

    yield open_one
    for store in opened:
        assert store.engine.pool.checkedout() == 0, "a connection is still in use"  # type: ignore[attr-defined]
        await store.close()


@pytest.fixture(params=["mariadb", "postgres"])
def server_url(request: pytest.FixtureRequest) -> str:
    """A database on each of the private servers in turn."""
    server = {"mariadb": "mariadb_server", "postgres": "postgresql_server"}[request.param]
    url: str = request.getfixturevalue(server).create_database()
    return url
