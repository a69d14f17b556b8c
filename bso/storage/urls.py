"""Addresses of databases: short forms, and clear words about wrong ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from urllib.parse import parse_qsl

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from bso.credentials import hide_passwords_of, problem_of
from bso.storage.errors import BadDatabaseUrl
from bso.tls import OPTIONS, TlsFailed, TlsOptions, tls_options

_DRIVERS = {
    "sqlite": ("sqlite+aiosqlite", "aiosqlite", "bso"),
    "mysql": ("mysql+asyncmy", "asyncmy", "bso-optimizer[mysql]"),
    "mariadb": ("mysql+asyncmy", "asyncmy", "bso-optimizer[mysql]"),
    "postgresql": ("postgresql+asyncpg", "asyncpg", "bso-optimizer[postgres]"),
    "postgres": ("postgresql+asyncpg", "asyncpg", "bso-optimizer[postgres]"),
}
_SOCKETS = {"mysql": "unix_socket", "postgresql": "host"}
"""The option that names a socket of this machine in place of a host: a file, and the folder of one."""
_EXAMPLES = "mysql://user:password@host/bso, postgresql://user:password@host/bso, or sqlite:////path/to/file.sqlite"


def database_url(text: str) -> URL:
    """Read an address; short forms like ``mysql://`` get their driver. Raises BadDatabaseUrl, TlsFailed.

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
    if backend == "sqlite":
        return _file(url)
    _require_values(text)
    return _server(url)


def sqlite_url(path: Path) -> URL:
    """The address of an SQLite file."""
    return URL.create("sqlite+aiosqlite", database=str(path))


def sqlite_path(url: URL) -> Path:
    """The file behind an SQLite address."""
    return Path(url.database or "").expanduser().absolute()


def server_host(url: URL) -> str | None:
    """The host of a server's address; None: it names a socket of this machine."""
    return None if _socket(url) else url.host


def tls_of(url: URL) -> TlsOptions:
    """How connections to a server are encrypted. Raises TlsFailed where its options contradict each other."""
    query = {name: value for name in OPTIONS if (value := _option(url, name)) is not None}
    options = tls_options(query, host=server_host(url))
    if options.is_on and server_host(url) is None:
        names = ", ".join(query)
        raise TlsFailed(f"a connection through a socket of this machine is never encrypted: take {names} out")
    return options


def without_tls(url: URL) -> URL:
    """The address as SQLAlchemy reads it: it would take our options for the driver's."""
    return url.difference_update_query(OPTIONS)


def shown(url: URL) -> str:
    """An address for people, without its password and its options."""
    return url.set(query={}).render_as_string(hide_password=True)


def _file(url: URL) -> URL:
    if url.host or url.query:
        options = " and options, of which it has none" if url.query else ""
        raise BadDatabaseUrl(
            "an SQLite address is sqlite:////absolute/path (four slashes) or sqlite:///relative/path (three), "
            f"got {shown(url)}{options}"
        )
    if not url.database or url.database == ":memory:":
        raise BadDatabaseUrl("an SQLite address must name a file: sqlite:////path/to/file.sqlite")
    return url.set(database=str(sqlite_path(url)))


def _server(url: URL) -> URL:
    _require_known_options(url)
    if not url.host and not _socket(url):
        raise BadDatabaseUrl(f"{shown(url)} names no host; it should look like {_EXAMPLES}")
    try:
        (url.host or "").encode("idna")
    except UnicodeError:
        raise BadDatabaseUrl(
            f"{shown(url)} names a host that cannot be one: expected an address, or labels of 1 to 63 characters with "
            f"dots between; it should look like {_EXAMPLES}"
        ) from None
    if not url.database:
        raise BadDatabaseUrl(f"{shown(url)} names no database; it should look like {_EXAMPLES}")
    tls_of(url)
    return url


def _require_known_options(url: URL) -> None:
    """Refuse what the driver would take for an argument of its own. Values are not shown: one may be a password."""
    known = (*OPTIONS, _SOCKETS[url.get_backend_name()])
    unknown = sorted(set(url.query) - set(known))
    if unknown:
        raise BadDatabaseUrl(f"the address has an unknown option {', '.join(unknown)}; known are {', '.join(known)}")
    twice = sorted(name for name, value in url.query.items() if not isinstance(value, str))
    if twice:
        raise BadDatabaseUrl(f"the address has the option {', '.join(twice)} more than once; leave one of them")


def _require_values(text: str) -> None:
    """Refuse an option without a value: SQLAlchemy would leave it out, and with it what it was to protect."""
    empty = [name for name, value in parse_qsl(text.partition("?")[2], keep_blank_values=True) if not value]
    if empty:
        raise BadDatabaseUrl(
            f"the address has an option without a value: {', '.join(empty)}; a variable that is not set?"
        )


def _socket(url: URL) -> str | None:
    """The socket of this machine that an address names."""
    name = _SOCKETS[url.get_backend_name()]
    socket = _option(url, name)
    if socket and (not socket.startswith("/") or "," in socket):  # SQLAlchemy takes a list for several hosts
        raise BadDatabaseUrl(
            f"{name}={socket} is no socket of this machine (expected an absolute path); a host stands before the name "
            f"of the database: {_EXAMPLES}"
        )
    return socket


def _option(url: URL, name: str) -> str | None:
    value = url.query.get(name)
    return value if isinstance(value, str) else None
