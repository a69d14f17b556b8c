"""Epochs of the log on a server that dies, and in dumps."""

import pytest

from bso.service.engine import Engine
from bso.service.errors import LogOutdated
from bso.service.log_epochs import LogWatch
from bso.storage.tables import log_epoch, metadata
from bso_migrations import upgrade
from tests.contract.storage.job_requests import ask, begin, registration
from tests.integration.storage.conftest import OpenAt
from tools.private_servers import MariaDB


async def test_event_ids_of_an_epoch_stay_above_its_number_when_the_server_was_killed(
    breakable_mariadb: MariaDB, open_at: OpenAt
) -> None:
    url = breakable_mariadb.create_database()
    await upgrade(url)
    store = open_at(url)
    watch = LogWatch(store.log_epochs)
    engine = Engine(store, watch=watch)
    await watch.look()
    await ask(engine, registration())
    begun = await store.log_epochs.begin()
    breakable_mariadb.kill()
    breakable_mariadb.start()
    assert await watch.look()
    await begin(engine)
    assert await store.last_event_id() > begun.number
    breakable_mariadb.kill()
    breakable_mariadb.start()
    assert not await watch.look()
    await begin(engine)


def test_a_dump_restores_the_epoch_before_any_table_that_workers_write() -> None:
    """Programs that dump write the tables by name; workers stop as soon as the epoch is an older one."""
    assert min(metadata.tables) == log_epoch.name


async def test_where_the_epoch_was_lost_another_one_begins(migrated_url: str, open_at: OpenAt) -> None:
    store = open_at(migrated_url)
    async with store.engine.begin() as connection:
        await connection.execute(log_epoch.delete())
    assert await store.log_epochs.current() is None
    await ask(Engine(store), registration())  # as in the first epoch
    watch = LogWatch(store.log_epochs)
    with pytest.raises(LogOutdated, match="no row"):
        await watch.look()
    await store.log_epochs.begin()
    assert not await watch.look()
