"""Statements that are larger than a MySQL or MariaDB server takes are refused before they are sent.

The server answers such a statement by cutting the connection, which looks to the driver like a server that died: the
command behind it would be tried again for ever. So each connection asks for the server's limit once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncEngine

from bso.service.errors import Unstorable

_LIMIT = "bso_max_allowed_packet"
_MOST_BYTES_PER_CHARACTER = 4
_ESCAPED = ("'", '"', "\\", "\n", "\r", "\0", "\x1a")  # each takes a second byte on the wire

_Row = Mapping[str, Any] | Sequence[Any]


def refuse_oversized_statements(engine: AsyncEngine) -> None:
    """Let the engine raise Unstorable for what its server would not take. One row never shares its fate with others."""

    @event.listens_for(engine.sync_engine, "connect")
    def _ask_for_limit(connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("SELECT @@max_allowed_packet")
        [record.info[_LIMIT]] = cursor.fetchone()
        cursor.close()

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def _measure(
        connection: Connection, _cursor: Any, statement: str, parameters: Any, _context: Any, is_many: Any
    ) -> None:
        limit = packet_limit(connection)
        if limit is not None:
            for row in parameters if is_many else (parameters,):
                _check(statement, row, limit)


def packet_limit(connection: Connection) -> int | None:
    """How large a statement the server of a connection takes [bytes]; None: it was not asked."""
    limit: int | None = connection.info.get(_LIMIT)
    return limit


def _check(statement: str, row: _Row, limit: int) -> None:
    texts = [statement, *map(_as_text, row.values() if isinstance(row, Mapping) else row)]
    if sum(map(len, texts)) * _MOST_BYTES_PER_CHARACTER < limit:
        return
    size = _size_b(texts)
    if size >= limit:
        raise Unstorable(f"a statement of {size} bytes is larger than the server's max_allowed_packet of {limit}")


def _size_b(texts: Iterable[str]) -> int:
    return sum(len(text.encode("utf-8", "replace")) + sum(map(text.count, _ESCAPED)) for text in texts)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else str(value)
