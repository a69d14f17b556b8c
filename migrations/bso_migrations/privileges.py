"""Which privilege the login of an upgrade lacks, and the statement by which an administrator grants it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import AsyncConnection

from bso.service.errors import StorePrivilegeMissing
from bso.storage.connections import translated

ROWS = ("SELECT", "INSERT", "UPDATE", "DELETE")
"""What workers and the commands of operators need on each table, and an upgrade as well."""
TABLES = ("CREATE", "ALTER", "INDEX", "DROP")
"""What an upgrade of MySQL or MariaDB needs beside them."""


@asynccontextmanager
async def naming_privileges(connection: AsyncConnection) -> AsyncIterator[None]:
    """Let an error about a privilege name it, with the login that lacks it and the statement that helps."""
    try:
        yield
    except StorePrivilegeMissing as error:
        with translated():
            await connection.rollback()
            of_backend = _of_postgresql if connection.dialect.name == "postgresql" else _of_mysql
            remedy = await of_backend(connection, str(error))
        raise StorePrivilegeMissing(f"{error}; {remedy}") from error


@asynccontextmanager
async def naming_access(url: URL) -> AsyncIterator[None]:
    """The same for a login that may not even use the database; there is no connection to ask."""
    try:
        yield
    except StorePrivilegeMissing as error:
        raise StorePrivilegeMissing(f"{error}; {_access(url, str(error))}") from error


def _access(url: URL, denial: str) -> str:
    if url.get_backend_name() == "postgresql":
        return _remedy(str(url.username), "CONNECT", f'GRANT CONNECT ON DATABASE "{url.database}" TO "{url.username}"')
    account = re.search(r"user ('[^']*'@'[^']*')", denial)
    return _mysql_remedy(account[1] if account else f"'{url.username}'", "all privileges", str(url.database))


async def _of_mysql(connection: AsyncConnection, denial: str) -> str:
    [[account, database]] = await _rows(connection, "SELECT CURRENT_USER(), DATABASE()")
    user, _, host = str(account).rpartition("@")
    denied = re.search(r"([A-Z][A-Z ]*) command denied", denial)
    return _mysql_remedy(f"'{user}'@'{host}'", denied[1] if denied else "a privilege", str(database))


def _mysql_remedy(account: str, lacks: str, database: str) -> str:
    return _remedy(account, lacks, f"GRANT {', '.join(ROWS + TABLES)} ON `{database}`.* TO {account}")


async def _of_postgresql(connection: AsyncConnection, denial: str) -> str:
    [[login]] = await _rows(connection, "SELECT current_user")
    if table := re.search(r"must be owner of \w+ (\S+)", denial):
        return _remedy(login, f"ownership of {table[1]}", f'ALTER TABLE {table[1]} OWNER TO "{login}"')
    if table := re.search(r"permission denied for (table|sequence) (\S+)", denial):
        kind, name = table[1].upper(), table[2]
        lacks = ", ".join(await _denied(connection, kind, name, ROWS if kind == "TABLE" else ("USAGE",)))
        return _remedy(login, lacks, f'GRANT {lacks} ON {kind} {name} TO "{login}"')
    schema = found[1] if (found := re.search(r"permission denied for schema (\S+)", denial)) else "public"
    lacks = ", ".join(await _denied(connection, "SCHEMA", schema, ("USAGE", "CREATE")))
    return _remedy(login, f"{lacks} on schema {schema}", f'GRANT USAGE, CREATE ON SCHEMA {schema} TO "{login}"')


async def _denied(connection: AsyncConnection, kind: str, name: str, asked: Sequence[str]) -> list[str]:
    ask = text(f"SELECT has_{kind.lower()}_privilege(:name, :privilege)")
    found = {each: (await connection.execute(ask, {"name": name, "privilege": each})).scalar() for each in asked}
    await connection.rollback()
    return [privilege for privilege, has_it in found.items() if not has_it]


async def _rows(connection: AsyncConnection, query: str) -> list[list[str]]:
    found = [list(map(str, row)) for row in await connection.execute(text(query))]
    await connection.rollback()
    return found


def _remedy(login: str, lacks: str, statement: str) -> str:
    return f"the login {login} lacks {lacks}: an administrator of the database grants it by: {statement}"
