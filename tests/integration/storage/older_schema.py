"""The schema of an earlier release, as its database has it."""

from sqlalchemy import text

from bso.storage import open_store

_TABLES = ("job", "trial", "event", "power_profile", "parked_job", "bso_log_epoch")
"""By revision, the first one's first."""


async def go_back(url: str, *, revision: int) -> None:
    """Drop the tables that came after a revision."""
    store = open_store(url)
    async with store.engine.connect() as connection:
        for table in _TABLES[revision:]:
            await connection.execute(text(f"DROP TABLE {table}"))
        await connection.execute(text(f"UPDATE bso_schema_version SET version_num = '{revision:04}'"))
        await connection.commit()
    await store.close()
