"""What is asked of each MySQL or MariaDB session once: how large a statement may be, and how it reads text.

The server answers a statement that is too large by cutting the connection, which looks to the driver like a server that
died: the command behind it would be tried again for ever. So such a statement is refused before it is sent.

In the sql_mode NO_BACKSLASH_ESCAPES, or in a character set with bytes that look like quotes, text would not be read as
it was written. Sessions set both themselves; one that says otherwise, as behind a proxy that swaps them, is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, PoolProxiedConnection, event
from sqlalchemy.ext.asyncio import AsyncEngine

from bso.service.errors import StoreUnusable, Unstorable

_CHARSET = "utf8mb4"
_LIMIT = "bso_max_allowed_packet"
_MOST_BYTES_PER_CHARACTER = 4
_ESCAPED = ("'", '"', "\\", "\n", "\r", "\0", "\x1a")  # each takes a second byte on the wire

_Row = Mapping[str, Any] | Sequence[Any]


def check_sessions(engine: AsyncEngine) -> None:
    """Let the engine use no session that misreads text, and raise Unstorable for what its server would not take.

    One row never shares its fate with others.
    """

    @event.listens_for(engine.sync_engine, "connect")
    def _ask(connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("SELECT @@max_allowed_packet, @@sql_mode, @@character_set_client, @@character_set_connection")
        record.info[_LIMIT], mode, *charsets = cursor.fetchone()
        cursor.close()
        if "NO_BACKSLASH_ESCAPES" in mode or any(charset != _CHARSET for charset in charsets):
            raise StoreUnusable(
                f"expected sessions with character set {_CHARSET} and without the sql_mode NO_BACKSLASH_ESCAPES, which "
                f"each sets when it begins, got {charsets[0]} and {mode!r}: a proxy in front of the database that "
                "gives one session to several clients cannot be used"
            )

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def _measure(
        connection: Connection, _cursor: Any, statement: str, parameters: Any, _context: Any, is_many: Any
    ) -> None:
        for row in parameters if is_many else (parameters,):
            _check(statement, row, packet_limit(connection))


def packet_limit(connection: Connection | PoolProxiedConnection) -> int:
    """How large a statement the server of a connection takes [bytes]."""
    limit: int = connection.info[_LIMIT]
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
