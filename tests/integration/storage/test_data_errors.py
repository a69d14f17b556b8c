"""Commands whose data no database can store are poison, and only they."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event

from bso.domain.foreign_text import shown
from bso.domain.replies import TrialBegun, TrialFinished
from bso.domain.trial import Outcome
from bso.service.engine import Engine
from bso.service.errors import Conflict, StoreUnusable
from bso.storage.connections import ConnectionLimits
from bso.storage.mysql import Requests
from bso.storage.statement_text import literal
from bso_migrations import upgrade
from tests.contract.storage.doubles import (
    HeldCommit,
    SteppedStore,
    rule_that_overflows_on,
    rule_that_writes_too_much_on,
)
from tests.contract.storage.job_requests import (
    JOB,
    ask,
    assert_log_equals_tables,
    begin,
    beginning,
    finish,
    registration,
)
from tests.integration.storage.conftest import OpenAt
from tools.private_servers import MariaDB


async def test_a_number_out_of_range_is_found_among_its_batch(migrated_url: str, open_at: OpenAt) -> None:
    store = open_at(migrated_url)
    await ask(Engine(store), registration(), registration("another"))
    bad = beginning()
    engine = Engine(store, rule=rule_that_overflows_on(bad.command_id))
    first, poison, last, elsewhere = await engine.execute([beginning(), bad, beginning(), beginning("another")])
    assert poison.poison is not None
    numbers = [answer.reply.trial_number for answer in (first, last) if isinstance(answer.reply, TrialBegun)]
    assert numbers == [1, 2]
    assert isinstance(elsewhere.reply, TrialBegun)
    await assert_log_equals_tables(store)


async def test_text_that_is_too_long_is_poison_on_a_server(server_url: str, open_at: OpenAt) -> None:
    await upgrade(server_url)
    store = open_at(server_url)
    await ask(Engine(store), registration())
    bad = beginning()
    [poison] = await Engine(store, rule=rule_that_writes_too_much_on(bad.command_id)).execute([bad])
    assert poison.poison is not None
    assert await store.trials(JOB) == []


@pytest.fixture
def small_packets(mariadb_server: MariaDB) -> Iterator[str]:
    """A database on a server that takes statements of at most 1 MiB."""
    before = mariadb_server.execute("SELECT @@max_allowed_packet")
    mariadb_server.execute("SET GLOBAL max_allowed_packet = 1048576")
    yield mariadb_server.create_database()
    mariadb_server.execute(f"SET GLOBAL max_allowed_packet = {before}")


async def test_what_is_larger_than_a_packet_of_the_server_is_poison_and_no_outage(
    small_packets: str, open_at: OpenAt
) -> None:
    await upgrade(small_packets)
    store = open_at(small_packets)
    await ask(Engine(store), registration())
    bad = beginning()
    rule = rule_that_writes_too_much_on(bad.command_id, characters=1_048_576)
    good, poison = await Engine(store, rule=rule).execute([beginning(), bad])
    assert isinstance(good.reply, TrialBegun)
    assert poison.poison is not None
    assert "max_allowed_packet" in poison.poison
    await assert_log_equals_tables(store)


async def test_what_is_sent_together_is_no_larger_than_a_packet_either(
    small_packets: str, mariadb_server: MariaDB, open_at: OpenAt
) -> None:
    mariadb_server.execute("SET GLOBAL max_allowed_packet = 65536")
    await upgrade(small_packets)
    store = open_at(small_packets)
    await ask(Engine(store), registration())
    [*_, last] = await ask(Engine(store), *(beginning() for _ in range(60)))
    assert isinstance(last.reply, TrialBegun)
    assert last.reply.trial_number == 60
    await assert_log_equals_tables(store)
    history = await store.history()
    assert [one.recorded.seq for one in history] == sorted(one.recorded.seq for one in history)


HOSTILE = (
    "it's",
    'a "quoted" word',
    "back\\slash",
    "\\'; DROP TABLE job; -- ",
    "'' OR 1=1 /* ",
    "*/ -- # ; %s %(name)s {} :name ?",
    "\n\r\t\x1a controls",
    "\u2019 ʼ ＇ ≠ quotes",
    "emoji 🙂 and 漢字",
    "\\",
    "\\\\'",
)


@pytest.mark.parametrize("text", HOSTILE)
async def test_text_comes_back_as_it_went(text: str, migrated_url: str, open_at: OpenAt) -> None:
    """Through the log, the reply of a command that is sent again, a trial's row, and a job's snapshot.

    Hidden characters of a reason are stored as they are shown.
    """
    store = open_at(migrated_url)
    engine = Engine(store)
    version = text if text.isprintable() else "1"
    await ask(engine, registration(version=version))
    trial = await begin(engine)
    ending = finish(trial, Outcome.NOT_CONVERGED, text)
    first = await engine.execute([ending])
    again = await engine.execute([ending])
    assert str(again[0].reply) == str(first[0].reply)
    assert again[0].is_repeat
    [stored] = await store.trials(JOB)
    assert shown(text) in stored.outcome_reason
    assert [one.version for one in await store.jobs()] == [version]
    await assert_log_equals_tables(store)


@pytest.mark.parametrize("mode", ["", "ANSI_QUOTES,STRICT_ALL_TABLES"])
async def test_no_text_ends_its_literal(mode: str, mysql_url: str, open_at: OpenAt) -> None:
    asked = [*HOSTILE, "a zero \x00 byte", "".join(map(chr, range(1, 0x300)))]
    async with open_at(mysql_url).engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        requests = Requests(driver, packet_limit=2_000_000)
        if mode:
            await requests.send([f"SET SESSION sql_mode = {literal(mode)}"])
        found = await requests.send([f"SELECT {literal(text)}" for text in asked])
        await requests.roll_back()
    assert [text for [[text]] in found] == asked


async def test_a_session_that_would_store_backslashes_twice_is_not_used(mysql_url: str, open_at: OpenAt) -> None:
    """As behind a proxy that hands sessions of one client to another."""
    store = open_at(mysql_url)

    @event.listens_for(store.engine.sync_engine, "connect", insert=True)
    def _changed_by_another(connection: Any, _record: object) -> None:
        connection.cursor().execute("SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES'")

    with pytest.raises(StoreUnusable, match="got utf8mb4 and 'NO_BACKSLASH_ESCAPES'"):
        await store.ping()


async def test_text_that_is_no_unicode_is_stored_as_it_is_shown(migrated_url: str, open_at: OpenAt) -> None:
    store = open_at(migrated_url)
    engine = Engine(store)
    await ask(engine, registration())
    trial = await begin(engine)
    broken = finish(trial, Outcome.NOT_CONVERGED, "half an emoji: \ud83d")
    ended, good = await engine.execute([broken, beginning()])
    assert isinstance(ended.reply, TrialFinished)
    assert isinstance(good.reply, TrialBegun)
    assert (await store.trials(JOB))[0].outcome_reason.endswith("half an emoji: \\ud83d")
    await assert_log_equals_tables(store)


async def test_a_lock_that_is_held_too_long_is_a_conflict_that_is_tried_again(
    migrated_url: str, open_at: OpenAt
) -> None:
    store = open_at(migrated_url)
    await ask(Engine(store), registration())
    held = HeldCommit()
    first = asyncio.create_task(Engine(SteppedStore(store, held)).execute([beginning()]))
    await held.arrived.wait()
    impatient = open_at(migrated_url, ConnectionLimits(lock_wait_s=1.0))
    with pytest.raises(Conflict):
        async with impatient.unit_of_work() as uow:
            await uow.lock([JOB], creating=())
    second = asyncio.create_task(Engine(impatient).execute([beginning()]))
    held.let_go.set()
    [[one], [other]] = await asyncio.gather(first, second)
    assert isinstance(one.reply, TrialBegun)
    assert isinstance(other.reply, TrialBegun)
    assert (one.reply.trial_number, other.reply.trial_number) == (1, 2)


async def test_one_of_two_deadlocked_transactions_is_told_so(server_url: str, open_at: OpenAt) -> None:
    await upgrade(server_url)
    store = open_at(server_url)
    await ask(Engine(store), registration("a"), registration("b"))

    async def lock_both(first: str, second: str, met: asyncio.Barrier) -> None:
        async with store.unit_of_work() as uow:
            await uow.lock([first], creating=())
            await met.wait()
            await uow.lock([second], creating=())

    met = asyncio.Barrier(2)
    ends = await asyncio.gather(lock_both("a", "b", met), lock_both("b", "a", met), return_exceptions=True)
    assert [type(end) for end in ends if end is not None] == [Conflict]
