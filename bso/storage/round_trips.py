"""Statements whose results nobody needs at once go out together with the next one: a distant server then answers once.

MySQL and MariaDB take several statements in one request; asyncmy asks for that (MULTI_STATEMENTS) whenever it connects.
The server stops at the first statement that fails, and its error is raised as if that had been sent alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Executable, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from bso.storage.packets import packet_limit

LATER: Mapping[str, Any] = {"bso_later": None}
"""Execution options of a statement that may wait for the next one of its connection; others ignore them."""
_MOST_BYTES = 1_000_000  # together


@dataclass(slots=True)
class _Held:
    """A statement that waits, and where its rows go."""

    text: bytes
    rows: list[Sequence[Any]] | None


async def rows_later(connection: AsyncConnection, statement: Executable, parameters: Any) -> Sequence[Sequence[Any]]:
    """Execute a query whose rows are in the list that is returned when the next statement has been executed."""
    rows: list[Sequence[Any]] = []
    result = await connection.execute(statement, parameters, execution_options={"bso_later": rows})
    if result.returns_rows:  # it did not wait
        rows.extend(result.all())
    return rows


def send_together(engine: AsyncEngine) -> None:
    """Let the engine hold back statements that are executed with LATER until one comes that is not."""
    held: WeakKeyDictionary[Connection, list[_Held]] = WeakKeyDictionary()

    def is_done(cursor: Any, context: Any, text_of: Callable[[], bytes | None]) -> bool:
        """Hold a statement back, or send it with those that were; False: the driver is to send it by itself."""
        waiting = held.setdefault(context.root_connection, [])
        may_wait = "bso_later" in context.execution_options
        if not (may_wait or waiting):
            return False
        text = text_of()
        size = sum(len(each.text) for each in waiting)
        fits = text is not None and size + len(text) <= _most_bytes(context.root_connection)
        if text is not None and fits:
            waiting.append(_Held(text, context.execution_options.get("bso_later")))
        if not (fits and may_wait):
            _send(cursor, waiting)
            waiting.clear()
        return fits

    @event.listens_for(engine.sync_engine, "do_execute")
    def _one(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
        return is_done(cursor, context, partial(_text, cursor, statement, parameters))

    @event.listens_for(engine.sync_engine, "do_executemany")
    def _many(cursor: Any, statement: str, parameters: Sequence[Any], context: Any) -> bool:
        return is_done(cursor, context, partial(_text_of_rows, cursor, statement, parameters))

    @event.listens_for(engine.sync_engine, "rollback")
    def _forget(connection: Connection) -> None:
        held.pop(connection, None)


def _most_bytes(connection: Connection) -> int:
    limit = packet_limit(connection)
    return _MOST_BYTES if limit is None else min(_MOST_BYTES, limit // 2)


def _send(cursor: Any, statements: Sequence[_Held]) -> None:
    if statements:
        cursor.execute(b";".join(each.text for each in statements))
    for each in statements[:-1]:
        if each.rows is not None:
            each.rows.extend(cursor.fetchall())
        cursor.nextset()  # raises what the statement has met


def _text(cursor: Any, statement: str, parameters: Any) -> bytes:
    """A statement as the driver would send it; SQLAlchemy's cursor has no method for that, the driver's has."""
    text: str = cursor._cursor.mogrify(statement, parameters)  # noqa: SLF001
    return text.encode("utf-8", "surrogateescape")


def _text_of_rows(cursor: Any, statement: str, parameters: Sequence[Any]) -> bytes | None:
    """An insertion of several rows as one statement, found as the driver itself does; None: it is none."""
    from asyncmy import cursors

    found: Any = cursors.RE_INSERT_VALUES.match(statement)
    if found is None:
        return None
    before, row, after = found.group(1) % (), found.group(2).rstrip(), found.group(3) or ""
    rows = b",".join(_text(cursor, row, one) for one in parameters)
    return bytes(before.encode() + rows + after.encode())
