"""SQL around a store, for what its methods do not offer."""

from typing import Any

import sqlalchemy as sa

from bso.storage import SqlStore


async def execute(store: SqlStore, *statements: str) -> Any:
    """Run statements in one transaction; the first value that the last one selects, None where it selects nothing."""
    value: Any = None
    async with store.engine.begin() as connection:
        for statement in statements:
            result = await connection.execute(sa.text(statement))
            value = result.scalar() if result.returns_rows else None
    return value
