"""The two stores that engines are measured on, and copies of them for the bare driver."""

import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sqlalchemy import make_url

from bso.storage import SqlStore, open_store
from bso_migrations import upgrade
from tests.benchmarks.laboratory import Laboratory, pid_of
from tests.benchmarks.recording import TABLES, BareMariaDB, BareSQLite
from tools.private_servers import MariaDB


class Place(Protocol):
    """A database with tables. ``server_pids`` are processes whose CPU time it costs beside our own."""

    name: str
    server_pids: list[int]

    def open(self) -> SqlStore:
        """A store over it."""
        ...

    def copy(self) -> BareMariaDB | BareSQLite:
        """The bare driver on a copy of what it holds now."""
        ...


@dataclass(kw_only=True)
class OnMariaDB:
    """A database on the private MariaDB."""

    server: MariaDB
    url: str
    name: str = "MariaDB"

    def __post_init__(self) -> None:
        self.server_pids = [pid_of(self.server)]

    def open(self) -> SqlStore:
        """A store over it."""
        return open_store(self.url)

    def copy(self) -> BareMariaDB:
        """The bare driver on a copy of what it holds now."""
        copied = self.server.create_database()
        source, target = make_url(self.url).database, make_url(copied).database
        for table in TABLES:
            self.server.execute(
                f"CREATE TABLE {target}.{table} LIKE {source}.{table};"
                f"INSERT INTO {target}.{table} SELECT * FROM {source}.{table}"
            )
        return BareMariaDB(copied)


@dataclass(kw_only=True)
class OnSQLite:
    """A file."""

    path: Path
    name: str = "SQLite"
    copies: int = 0

    def __post_init__(self) -> None:
        self.server_pids: list[int] = []

    def open(self) -> SqlStore:
        """A store over it, as the embedded mode has it."""
        return open_store(f"sqlite:///{self.path}", has_outbox=False)

    def copy(self) -> BareSQLite:
        """The bare driver on a copy of what it holds now."""
        self.copies += 1
        copied = self.path.with_suffix(f".copy{self.copies}")
        connection = sqlite3.connect(self.path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        shutil.copyfile(self.path, copied)
        return BareSQLite(copied)


async def on_sqlite(laboratory: Laboratory, name: str) -> OnSQLite:
    """A new file with tables."""
    path = laboratory.folder / f"{name}.sqlite"
    await upgrade(f"sqlite:///{path}")
    return OnSQLite(path=path)


async def on_mariadb(laboratory: Laboratory) -> OnMariaDB:
    """A new database with tables."""
    url = laboratory.mariadb.create_database()
    await upgrade(url)
    return OnMariaDB(server=laboratory.mariadb, url=url)
