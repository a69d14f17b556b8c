"""Statements whose results nobody waits for go out together with the next one: a distant server then answers once.

MySQL and MariaDB take several statements in one request; asyncmy asks for that (MULTI_STATEMENTS) whenever it connects.
The server stops at the first statement that fails, and its error is raised as if that had been sent alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncEngine

LATER = {"bso_later": True}
"""Execution options of a statement that may wait for the next one of its connection; others ignore them."""
_MOST_BYTES = 1_000_000  # together: far below what a server takes at least


def send_together(engine: AsyncEngine) -> None:
    """Let the engine hold back statements that are executed with LATER until one comes that is not."""
    held: WeakKeyDictionary[Connection, list[bytes]] = WeakKeyDictionary()

    @event.listens_for(engine.sync_engine, "do_execute")
    def _one(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
        if not (_may_wait(context) or held.get(context.root_connection)):
            return False
        return send(cursor, _text(cursor, statement, parameters), context)

    @event.listens_for(engine.sync_engine, "do_executemany")
    def _many(cursor: Any, statement: str, parameters: Sequence[Any], context: Any) -> bool:
        if not (_may_wait(context) or held.get(context.root_connection)):
            return False
        return send(cursor, _text_of_rows(cursor, statement, parameters), context)

    @event.listens_for(engine.sync_engine, "rollback")
    def _forget(connection: Connection) -> None:
        held.pop(connection, None)

    def send(cursor: Any, text: bytes | None, context: Any) -> bool:
        """Hold a statement back, or send it with those that were; False: the driver is to send it as usual."""
        waiting = held.setdefault(context.root_connection, [])
        fits = text is not None and sum(map(len, waiting)) + len(text) <= _MOST_BYTES
        if text is not None and fits and _may_wait(context):
            waiting.append(text)
            return True
        together = [*waiting, text] if text is not None and fits else [*waiting]
        waiting.clear()
        if together:
            cursor.execute(b";".join(together))
        for _ in together[1:]:
            cursor.nextset()  # raises what the statement has met
        return text is not None and fits


def _may_wait(context: Any) -> bool:
    return bool(context.execution_options.get("bso_later"))


def _text(cursor: Any, statement: str, parameters: Any) -> bytes:
    """A statement as the driver would send it."""
    text: str = cursor._cursor.mogrify(statement, parameters)  # noqa: SLF001  the driver's own, behind SQLAlchemy's
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
