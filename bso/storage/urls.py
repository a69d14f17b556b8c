"""Addresses of databases: short forms, and clear words about wrong ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from bso.credentials import hide_passwords_of, problem_of
from bso.storage.errors import BadDatabaseUrl

_DRIVERS = {
    "sqlite": ("sqlite+aiosqlite", "aiosqlite", "bso"),
    "mysql": ("mysql+asyncmy", "asyncmy", "bso-optimizer[mysql]"),
    "mariadb": ("mysql+asyncmy", "asyncmy", "bso-optimizer[mysql]"),
    "postgresql": ("postgresql+asyncpg", "asyncpg", "bso-optimizer[postgres]"),
    "postgres": ("postgresql+asyncpg", "asyncpg", "bso-optimizer[postgres]"),
}
_EXAMPLES = "mysql://user:password@host/bso, postgresql://user:password@host/bso, or sqlite:////path/to/file.sqlite"


def database_url(text: str) -> URL:
    """Read an address; short forms like ``mysql://`` get their driver. Raises BadDatabaseUrl.

    No part of an address that could be read in two ways is in an error's message: it may belong to the password.
    """
    hide_passwords_of(text)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # its words would quote the address
        raise BadDatabaseUrl(f"this is not the address of a database; it should look like {_EXAMPLES}") from None
    if problem := problem_of(text):
        raise BadDatabaseUrl(f"the address of the database cannot be used: {problem}; it should look like {_EXAMPLES}")
    backend = url.drivername.partition("+")[0]
    if backend not in _DRIVERS:
        raise BadDatabaseUrl(f"{url.drivername}:// is not a database that bso knows; it should look like {_EXAMPLES}")
    drivername, module, extra = _DRIVERS[backend]
    if "+" in url.drivername and url.drivername.partition("+")[2] != drivername.partition("+")[2]:
        raise BadDatabaseUrl(f"bso reaches {backend} through {drivername}:// or {backend}://, got {url.drivername}://")
    if importlib.util.find_spec(module) is None:
        raise BadDatabaseUrl(f"{backend}:// needs a driver that is not installed: pip install '{extra}'")
    url = url.set(drivername=drivername)
    return _file(url) if backend == "sqlite" else _server(url)


def sqlite_url(path: Path) -> URL:
    """The address of an SQLite file."""
    return URL.create("sqlite+aiosqlite", database=str(path))


def sqlite_path(url: URL) -> Path:
    """The file behind an SQLite address."""
    return Path(url.database or "").expanduser().absolute()


def shown(url: URL) -> str:
    """An address for people, without its password and its options."""
    return url.set(query={}).render_as_string(hide_password=True)


def _file(url: URL) -> URL:
    if url.host or url.query:
        raise BadDatabaseUrl(
            "an SQLite address is sqlite:////absolute/path (four slashes) or sqlite:///relative/path (three), "
            f"got {shown(url)}"
        )
    if not url.database or url.database == ":memory:":
        raise BadDatabaseUrl("an SQLite address must name a file: sqlite:////path/to/file.sqlite")
    return url.set(database=str(sqlite_path(url)))


def _server(url: URL) -> URL:
    if not url.host and "unix_socket" not in url.query and "host" not in url.query:
        raise BadDatabaseUrl(f"{shown(url)} names no host; it should look like {_EXAMPLES}")
    if not url.database:
        raise BadDatabaseUrl(f"{shown(url)} names no database; it should look like {_EXAMPLES}")
    return url
