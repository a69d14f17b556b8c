"""The stores that the contract suite runs over."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import pytest

from bso.service.memory import InMemoryStore
from bso.service.ports import Store
from bso.storage import open_store
from bso_migrations import upgrade
from tests.servers.fixtures import DATABASES

OpenStore = Callable[[], Store]


@pytest.fixture(params=["memory", *DATABASES])
def database_url(request: pytest.FixtureRequest) -> str:
    """As everywhere, and memory beside it."""
    if request.param == "memory":
        return "memory"
    kind = {"sqlite": "sqlite_url", "mariadb": "mariadb_url", "postgres": "postgres_url", "mysql": "mysql_url"}
    url: str = request.getfixturevalue(kind[request.param])
    return url


@pytest.fixture
def mariadb_url(request: pytest.FixtureRequest) -> str:
    """A new, empty database on the private MariaDB, whatever else is given."""
    url: str = request.getfixturevalue("mariadb_server").create_database()
    return url


@pytest.fixture
async def open_another(database_url: str) -> AsyncIterator[OpenStore]:
    """Opens stores over one and the same empty database, each with connections of its own."""
    opened: list[Store] = []
    if database_url != "memory":
        await upgrade(database_url)
    memory = InMemoryStore(lambda: datetime.now(UTC))

    def open_one() -> Store:
        store: Store = memory if database_url == "memory" else open_store(database_url)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
def store(open_another: OpenStore) -> Store:
    """A store with an empty database."""
    return open_another()
