"""Units of work on PostgreSQL: whatever a batch writes is one statement, with an array for each column.

    1 BEGIN   2 SELECT the free jobs FOR UPDATE SKIP LOCKED   3 SELECT what the store remembers
    4 WITH INSERT events RETURNING, INSERT trials ON CONFLICT, INSERT jobs ON CONFLICT SELECT the ids   5 COMMIT

Its text is the same however many the rows are, so that the server plans it once.
https://www.postgresql.org/docs/current/queries-with.html#QUERIES-WITH-MODIFYING
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import Insert, Select, String, Text, bindparam, column, func, literal, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine
from typing_extensions import override

from bso.service.records import ChangeSet
from bso.storage import statements
from bso.storage.tables import event
from bso.storage.unit_of_work import SqlUnitOfWork

_Part = tuple[Insert, tuple[str, ...]]
"""An insertion, and the names of the columns that its rows have."""


class PostgresUnitOfWork(SqlUnitOfWork):
    """A unit of work that writes all tables at once."""

    @override
    async def _write(self, changes: ChangeSet) -> Mapping[tuple[str, int], int]:
        insertions = [(statements.APPEND_EVENTS, self._event_rows(changes))] if changes.events else []
        for statement, rows in self._writes(changes):
            if rows is not None and isinstance(statement, Insert):
                insertions.append((statement, rows))
            else:
                await self._run(statement)
        if not insertions:
            return {}
        parts = tuple((insertion, tuple(rows[0])) for insertion, rows in insertions)
        arrays = {
            _array(insertion, name): [row[name] for row in rows] for insertion, rows in insertions for name in rows[0]
        }
        found = await self._rows(_together(parts), arrays)
        return {(row["job_id"], row["seq"]): row["event_id"] for row in found if row["event_id"] is not None}


@cache
def _together(parts: tuple[_Part, ...]) -> Select[*tuple[Any, ...]]:
    """One statement for these insertions, that reads the ids of the events."""
    selected: Select[*tuple[Any, ...]] = select(*(literal(None).label(name) for name in ("event_id", "job_id", "seq")))
    for insertion, names in parts:
        from_arrays = _from_arrays(insertion, names)
        if insertion is statements.APPEND_EVENTS:
            appended = from_arrays.returning(event.c.event_id, event.c.job_id, event.c.seq).cte("appended")
            selected = select(appended.c.event_id, appended.c.job_id, appended.c.seq)
        else:
            selected = selected.add_cte(from_arrays.cte(f"new_{insertion.table.name}"))
    return selected


def _from_arrays(insertion: Insert, names: tuple[str, ...]) -> Insert:
    """The insertion of the rows of arrays, in their order: ids are given in it."""
    types = {name: insertion.table.c[name].type for name in names}
    arrays = (bindparam(_array(insertion, name), type_=ARRAY(_sent_as(types[name]))) for name in names)
    columns = (column(name, types[name]) for name in names)
    new = func.unnest(*arrays).table_valued(*columns, with_ordinality="number", name="new").render_derived()
    return insertion.from_select(list(names), select(*(new.c[name] for name in names)).order_by(new.c.number))


def _array(insertion: Insert, name: str) -> str:
    return f"{insertion.table.name}_{name}"


def _sent_as(of: TypeEngine[Any]) -> TypeEngine[Any]:
    """A cast to an array of VARCHAR(36) would cut what is longer; a column refuses it."""
    return Text() if isinstance(of, String) else of
