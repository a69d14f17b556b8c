"""Databases with tables in them."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bso.storage import SqlStore, open_store
from bso.storage.connections import ConnectionLimits
from bso.storage.unit_of_work import SqlUnitOfWork
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


@contextmanager
def read_of() -> Iterator[list[Any]]:
    """The states and the active trials that engines read."""
    found: list[Any] = []
    lock, try_lock, recollect = SqlUnitOfWork.lock, SqlUnitOfWork.try_lock, SqlUnitOfWork.recollect

    async def noted_lock(uow: SqlUnitOfWork, *ids: Any, **options: Any) -> Any:
        stored = await lock(uow, *ids, **options)
        found.extend(one for one in stored.values() if one.state)
        return stored

    async def noted_try(uow: SqlUnitOfWork, *ids: Any, **options: Any) -> Any:
        locked = await try_lock(uow, *ids, **options)
        found.extend(one for one in locked.jobs.values() if one.state)
        found.extend(locked.memory.active if locked.memory else ())
        return locked

    async def noted_recollect(uow: SqlUnitOfWork, *ids: Any, **options: Any) -> Any:
        memory = await recollect(uow, *ids, **options)
        found.extend(memory.active)
        return memory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqlUnitOfWork, "lock", noted_lock)
        patch.setattr(SqlUnitOfWork, "try_lock", noted_try)
        patch.setattr(SqlUnitOfWork, "recollect", noted_recollect)
        yield found
