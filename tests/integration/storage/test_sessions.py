"""What every session with a database server is set to, in whatever order it is used."""

import pytest
import sqlalchemy as sa

from bso_migrations import upgrade
from tests.integration.storage.conftest import OpenAt
from tests.servers.fixtures import DATABASES

pytestmark = pytest.mark.parametrize("database_url", [kind for kind in DATABASES if kind != "sqlite"], indirect=True)
LEVEL = {
    "mysql": "SHOW SESSION VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')",
    "postgresql": "SELECT '', current_setting('transaction_isolation')",
}


async def test_a_session_reads_what_is_committed_also_after_a_snapshot(database_url: str, open_at: OpenAt) -> None:
    await upgrade(database_url)
    store = open_at(database_url)
    listing = sa.text(LEVEL[store.engine.dialect.name])
    levels = []
    for options in ({}, {"isolation_level": "REPEATABLE READ"}, {}):
        async with store.engine.connect() as connection:
            await connection.execution_options(**options)
            levels.append((await connection.execute(listing)).one()[1].upper().replace("-", " "))
    assert levels == ["READ COMMITTED", "REPEATABLE READ", "READ COMMITTED"]
