"""The steps that revisions are made of. Each can be taken again after it was taken but not recorded.

MySQL commits every DDL statement on its own: a server that dies between a statement and the record of its revision
leaves the step done, or half done. Taking it again must then be no error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import context, op

from bso.domain.errors import Misconfigured


def create_table(
    name: str,
    *columns: sa.schema.SchemaItem,
    indexes: Mapping[str, Sequence[str]] | None = None,
    first_row: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Create a table and its indexes unless they are there. ``indexes`` are columns by the name of the index.

    ``first_row`` is SQL by column, for a table that is never empty.
    """
    if not context.is_offline_mode():
        _require_ours(name, {column.name for column in columns if isinstance(column, sa.Column)})
    op.create_table(name, *columns, if_not_exists=True, **options)
    for index, indexed in (indexes or {}).items():
        _create_index(index, name, indexed)
    if first_row is not None:
        op.execute(
            f"INSERT INTO {name} ({', '.join(first_row)}) SELECT {', '.join(first_row.values())} "  # noqa: S608  ours
            f"FROM (SELECT COUNT(*) AS rows_there FROM {name}) AS known WHERE known.rows_there = 0"
        )


def _require_ours(table: str, expected: set[str]) -> None:
    """Raise Misconfigured where another program's table has the name of one of ours."""
    inspector = sa.inspect(op.get_bind())
    if not inspector.has_table(table):
        return
    if other := expected ^ {column["name"] for column in inspector.get_columns(table)}:
        raise Misconfigured(
            f"there is a table {table} in this database that is not bso's (columns that only one of them has: "
            f"{', '.join(sorted(other))}): let bso have a database of its own"
        )


def _create_index(name: str, table: str, columns: Sequence[str]) -> None:
    known = () if context.is_offline_mode() else sa.inspect(op.get_bind()).get_indexes(table)
    if name not in {index["name"] for index in known}:
        op.create_index(name, table, list(columns))
