"""A database that Zeus' own server has written (zeus_jobs.JOBS), and commands over an empty one of ours."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bso_migrations import upgrade
from tests.integration.replay.test_commands import Bso

HERE = Path(__file__).parent


@pytest.fixture
def zeus_file(tmp_path: Path) -> Path:
    """The file of Zeus' server: zeus.sql is what it had written, but for the values that SQLite cannot read again."""
    file = tmp_path / "zeus.db"
    with closing(sqlite3.connect(file)) as database:
        database.executescript((HERE / "zeus.sql").read_text())
    return file


@pytest.fixture
def change(zeus_file: Path) -> Callable[..., None]:
    """Changes that file by a statement, as Zeus' server would, or as nobody should."""

    def execute(statement: str, *values: object) -> None:
        with closing(sqlite3.connect(zeus_file)) as database:
            database.execute(statement, values)
            database.commit()

    return execute


@pytest.fixture
def bso(tmp_path: Path) -> Bso:
    """Commands on a migrated database without a job."""
    url = f"sqlite:///{tmp_path / 'bso.sqlite'}"
    asyncio.run(upgrade(url))
    return Bso(url=url)
