"""Real databases for replay, with a history of every kind in them."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bso.storage import SqlStore, open_store
from bso_migrations import upgrade


@pytest.fixture(scope="session")
def empty_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty SQLite database, to be copied: migrating takes longer than most tests."""
    path = tmp_path_factory.mktemp("empty") / "empty.sqlite"
    asyncio.run(upgrade(f"sqlite:///{path}"))
    return path


@pytest.fixture
async def store(database_url: str, empty_sqlite: Path, tmp_path: Path) -> AsyncIterator[SqlStore]:
    """An empty database of each kind in turn."""
    if database_url.startswith("sqlite"):
        shutil.copy(empty_sqlite, tmp_path / "bso.sqlite")
    else:
        await upgrade(database_url)
    opened = open_store(database_url)
    yield opened
    await opened.close()


@pytest.fixture
async def other(empty_sqlite: Path, tmp_path: Path) -> AsyncIterator[SqlStore]:
    """Another empty database, always SQLite."""
    opened = open_store(f"sqlite:///{shutil.copy(empty_sqlite, tmp_path / 'other.sqlite')}")
    yield opened
    await opened.close()


@pytest.fixture
async def staging(empty_sqlite: Path, tmp_path: Path) -> AsyncIterator[SqlStore]:
    """A log for the lines of a file, as the command makes one."""
    opened = open_store(f"sqlite:///{shutil.copy(empty_sqlite, tmp_path / 'staging.sqlite')}")
    yield opened
    await opened.close()
