"""Commands whose data no database can store are poison, and only they."""

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, Text, insert, select

from bso.domain.replies import TrialBegun
from bso.domain.trial import Outcome
from bso.service.engine import Engine
from bso.service.errors import Conflict
from bso.storage.connections import ConnectionLimits
from bso.storage.round_trips import LATER
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
    whole_history,
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


async def test_statements_that_are_sent_together_are_no_larger_than_a_packet_either(
    small_packets: str, mariadb_server: MariaDB, open_at: OpenAt
) -> None:
    mariadb_server.execute("SET GLOBAL max_allowed_packet = 262144")
    store = open_at(small_packets)
    texts = Table("texts", MetaData(), Column("number", Integer), Column("text", Text(300_000)))
    async with store.engine.begin() as connection:
        await connection.run_sync(texts.metadata.create_all)
        for number in range(5):
            row = {"number": number, "text": "x" * 60_000}
            await connection.execute(insert(texts), [row], execution_options=LATER)
        numbers = (await connection.execute(select(texts.c.number).order_by(texts.c.number))).scalars().all()
    assert numbers == [0, 1, 2, 3, 4]


async def test_text_that_is_no_unicode_is_poison(migrated_url: str, open_at: OpenAt) -> None:
    store = open_at(migrated_url)
    engine = Engine(store)
    await ask(engine, registration())
    trial = await begin(engine)
    before = await whole_history(store)
    broken = finish(trial, Outcome.NOT_CONVERGED, "half an emoji: \ud83d")
    poison, good = await engine.execute([broken, beginning()])
    assert poison.poison is not None
    assert isinstance(good.reply, TrialBegun)
    assert (await whole_history(store))[: len(before)] == before
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
