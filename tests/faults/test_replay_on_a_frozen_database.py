"""A database that stands still while replay holds a job's lock."""

import pytest

from bso.domain.decide import Rules
from bso.replay.rebuild import rebuild
from bso.service.engine import Engine
from bso.service.errors import StoreUnavailable
from bso.storage.connections import ConnectionLimits, create_engine
from bso.storage.store import SqlStore
from bso.storage.urls import database_url
from bso_migrations import upgrade
from tests.contract.storage.job_requests import JOB, ask, begin, registration
from tools.private_servers import MariaDB


async def test_whoever_holds_a_lock_gives_up_in_time_and_nothing_has_happened(
    breakable_mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = breakable_mariadb.create_database()
    await upgrade(url)
    store = SqlStore(create_engine(database_url(url), ConnectionLimits()))
    try:
        await ask(Engine(store), registration())
        await begin(Engine(store))
        with (
            monkeypatch.context() as while_it_is_frozen,
            pytest.raises(StoreUnavailable, match="did not answer within 1 s"),
        ):
            await _stand_still_under_the_lock(store, breakable_mariadb, while_it_is_frozen)
        breakable_mariadb.thaw()
        assert (await rebuild(store, JOB, rules=Rules())).changed_rows == 0
    finally:
        breakable_mariadb.thaw()
        await store.close()


async def _stand_still_under_the_lock(store: SqlStore, server: MariaDB, impatience: pytest.MonkeyPatch) -> None:
    async with store.locked_job(JOB) as locked:
        server.freeze()
        impatience.setattr(store, "read_timeout_s", 1.0)
        await locked.rows()
