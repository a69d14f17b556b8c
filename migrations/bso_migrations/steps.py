"""The steps that revisions are made of. Each can be taken again after it was taken but not recorded.

MySQL commits every DDL statement on its own: a server that dies between a statement and the record of its revision
leaves the step done, or half done. Taking it again must then be no error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import context, op


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
    op.create_table(name, *columns, if_not_exists=True, **options)
    for index, indexed in (indexes or {}).items():
        _create_index(index, name, indexed)
    if first_row is not None:
        op.execute(
            f"INSERT INTO {name} ({', '.join(first_row)}) SELECT {', '.join(first_row.values())} "  # noqa: S608  ours
            f"FROM (SELECT COUNT(*) AS rows_there FROM {name}) AS known WHERE known.rows_there = 0"
        )


def _create_index(name: str, table: str, columns: Sequence[str]) -> None:
    known = () if context.is_offline_mode() else sa.inspect(op.get_bind()).get_indexes(table)
    if name not in {index["name"] for index in known}:
        op.create_index(name, table, list(columns))
