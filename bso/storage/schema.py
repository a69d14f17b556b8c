"""Which schema a database has."""

from __future__ import annotations

from sqlalchemy import column, select, table
from sqlalchemy.ext.asyncio import AsyncConnection

from bso.service.errors import SchemaMissing
from bso.service.records import SchemaState, SchemaStatus
from bso.storage.connections import translated
from bso.storage.tables import SCHEMA_REVISION

VERSION_TABLE = "bso_schema_version"
"""Where Alembic keeps the revision: a name of our own, since the database may be shared."""

_versions = table(VERSION_TABLE, column("version_num"))


async def schema_state(connection: AsyncConnection) -> SchemaState:
    """The revision that the database has, compared with the one that this program expects."""
    try:
        with translated():
            async with connection.begin_nested():  # PostgreSQL gives a transaction up after an error
                found = (await connection.execute(select(_versions.c.version_num))).scalar()
    except SchemaMissing:
        found = None
    return state_of_revision(found)


def state_of_revision(found: str | None) -> SchemaState:
    """How a revision relates to this program's. Revisions are numbers of four digits: later ones are greater."""
    if found is None:
        status = SchemaStatus.MISSING
    elif found == SCHEMA_REVISION:
        status = SchemaStatus.CURRENT
    else:
        status = SchemaStatus.OLDER if found < SCHEMA_REVISION else SchemaStatus.NEWER
    return SchemaState(found=found, expected=SCHEMA_REVISION, status=status)
