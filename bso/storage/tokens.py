"""The table of tokens, with which clients of gateways show who they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime

from sqlalchemy import Executable, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from bso.domain.rights import Right
from bso.domain.tokens import Token
from bso.storage.dialects import Dialect
from bso.storage.rows import Row
from bso.storage.tables import token as table


class SqlTokens:
    """Reads and writes the table, each time in a transaction of its own: of ``writing``, or as ``read`` reads."""

    def __init__(
        self,
        dialect: Dialect,
        *,
        writing: Callable[[], AbstractAsyncContextManager[AsyncConnection]],
        read: Callable[[Executable], Awaitable[Sequence[Row]]],
    ) -> None:
        self._dialect = dialect
        self._writing = writing
        self._read = read

    async def create(self, token: Token, digest: str) -> None:
        """Keep a new token."""
        row = {
            "token_id": token.token_id,
            "user_name": token.user,
            "granted": token.right.value,
            "jobs": token.jobs,
            "digest": digest,
            "created_at": token.created_at,
            "lifetime_s": token.lifetime_s,
            "expires_at": token.expires_at,
            "revoked_at": token.revoked_at,
            "last_used_at": token.last_used_at,
        }
        async with self._writing() as connection:
            await connection.execute(insert(table), [row])

    async def all(self) -> Sequence[Token]:
        """All tokens, the oldest first."""
        rows = await self._read(select(table).order_by(table.c.created_at, table.c.token_id))
        return [_token(row) for row in rows]

    async def find(self, token_id: str) -> tuple[Token, str] | None:
        """A token and its digest."""
        rows = await self._read(select(table).where(table.c.token_id == token_id))
        return (_token(rows[0]), str(rows[0]["digest"])) if rows else None

    async def change(self, token: Token) -> None:
        """Keep when a token expires, or was revoked."""
        changed = update(table).where(table.c.token_id == token.token_id)
        async with self._writing() as connection:
            await connection.execute(changed.values(expires_at=token.expires_at, revoked_at=token.revoked_at))

    async def used(self, token_id: str) -> None:
        """Record that a token was used just now."""
        async with self._writing() as connection:
            now = (await connection.execute(select(self._dialect.clock()))).scalar_one()
            await connection.execute(update(table).where(table.c.token_id == token_id).values(last_used_at=now))

    async def now(self) -> datetime:
        """The database's clock."""
        found: datetime = (await self._read(select(self._dialect.clock().label("now"))))[0]["now"]
        return found


def _token(row: Row) -> Token:
    return Token(
        token_id=row["token_id"],
        user=row["user_name"],
        right=Right(row["granted"]),
        jobs=row["jobs"],
        created_at=row["created_at"],
        lifetime_s=row["lifetime_s"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        last_used_at=row["last_used_at"],
    )
