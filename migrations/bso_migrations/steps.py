"""The steps that revisions are made of. Each can be taken again after it was taken but not recorded.

MySQL commits every DDL statement on its own: a server that dies between a statement and the record of its revision
leaves the step done. Taking it again must then be no error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import context, op


def create_table(
    name: str, *columns: sa.schema.SchemaItem, first_row: Mapping[str, str] | None = None, **options: Any
) -> None:
    """Create a table unless it is there; ``first_row`` is SQL by column, for a table that is never empty."""
    op.create_table(name, *columns, if_not_exists=True, **options)
    if first_row is not None:
        op.execute(
            f"INSERT INTO {name} ({', '.join(first_row)}) SELECT {', '.join(first_row.values())} "  # noqa: S608  ours
            f"FROM (SELECT COUNT(*) AS rows_there FROM {name}) AS known WHERE known.rows_there = 0"
        )


def drop_table(name: str) -> None:
    """Drop a table if it is there."""
    op.drop_table(name, if_exists=True)


def create_index(name: str, table: str, columns: list[str]) -> None:
    """Create an index unless it is there."""
    if context.is_offline_mode() or name not in _indexes(table):
        op.create_index(name, table, columns)


def drop_index(name: str, table: str) -> None:
    """Drop an index if it is there."""
    if context.is_offline_mode() or name in _indexes(table):
        op.drop_index(name, table_name=table)


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column unless it is there."""
    if context.is_offline_mode() or column.name not in _columns(table):
        op.add_column(table, column)


def drop_column(table: str, name: str) -> None:
    """Drop a column if it is there."""
    if context.is_offline_mode() or name in _columns(table):
        op.drop_column(table, name)


def _columns(table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}
