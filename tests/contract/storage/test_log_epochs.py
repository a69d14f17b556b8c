"""Epochs of the log: what is recorded in which, and a store that holds an older state than before."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from bso.domain.log import FIRST_EPOCH
from bso.service.engine import Engine
from bso.service.errors import LogOutdated
from bso.service.log_epochs import LogWatch
from bso.service.ports import Store
from bso.service.records import StoredEvent
from bso.storage import SqlStore
from bso.storage.tables import log_epoch
from tests.contract.storage.conftest import OpenStore
from tests.contract.storage.doubles import SteppedStore
from tests.contract.storage.job_requests import (
    JOB,
    ask,
    assert_log_equals_tables,
    begin,
    beginning,
    registration,
    report,
)
from tests.servers.fixtures import DATABASES


class GivenUp(Exception):
    """A transaction is rolled back."""


async def give_up(_: object) -> None:
    raise GivenUp


async def epochs(store: Store) -> list[int]:
    return [stored.recorded.log_epoch for stored in await log(store)]


async def log(store: Store) -> Sequence[StoredEvent]:
    return await store.history(JOB)


async def test_events_are_recorded_in_the_epoch_that_the_log_is_in(store: Store) -> None:
    engine = Engine(store)
    await ask(engine, registration(), beginning())
    first = await store.log_epochs.current()
    assert first is not None
    assert (first.number, first.outdated_at) == (FIRST_EPOCH, None)
    begun = await store.log_epochs.begin()
    assert begun == await store.log_epochs.current()
    [answer] = await ask(engine, beginning())
    assert [stored.recorded.log_epoch for stored in answer.events] == [begun.number] * len(answer.events)
    new = len(answer.events)
    before, after = (await log(store))[:-new], (await log(store))[-new]
    assert {stored.recorded.log_epoch for stored in before} == {FIRST_EPOCH}
    assert after.recorded.log_epoch == begun.number
    assert after.event_id > begun.number > before[-1].event_id
    assert after.recorded.seq == before[-1].recorded.seq + 1
    assert [one.recorded.log_epoch for one in (await store.unpublished(older_than_s=0.0)).events] == await epochs(store)
    if isinstance(store, SqlStore):
        assert [logged.new.log_epoch for logged in await store.log_page(JOB)] == await epochs(store)
    await assert_log_equals_tables(store)


async def test_no_epoch_has_the_number_of_an_earlier_one_even_if_a_restore_has_taken_that_away(store: Store) -> None:
    """The number is the time, not a count of what the store remembers."""
    numbers = [(await store.log_epochs.begin()).number for _ in range(3)]
    assert numbers == sorted(set(numbers))
    assert numbers[0] > 1_700_000_000_000_000
    await ask(Engine(store), registration())
    assert (await store.log_epochs.begin()).number > await store.last_event_id()


async def test_each_look_is_later_than_the_one_before(store: Store) -> None:
    found = []
    for _ in range(3):
        looked = await store.log_epochs.look(lambda _: None)
        assert looked is not None
        found.append(looked)
        assert looked == await store.log_epochs.current()
    assert found == sorted(found, key=lambda one: one.looked_at)
    assert len({one.looked_at for one in found}) == 3


async def test_looks_of_several_who_share_a_store_alarm_nobody(open_another: OpenStore) -> None:
    stores = [open_another(), open_another()]
    watches = [LogWatch(store.log_epochs) for store in stores]
    engines = [Engine(store, watch=watch) for store, watch in zip(stores, watches, strict=True)]
    await watches[0].look()
    await ask(engines[0], registration())
    for _ in range(3):
        for watch, engine in zip(watches, engines, strict=True):
            assert not await watch.look()
            await begin(engine)
    await assert_log_equals_tables(stores[0])


async def test_looks_and_decisions_that_overtake_one_another_alarm_nobody(open_another: OpenStore) -> None:
    stores = [open_another(), open_another()]
    await ask(Engine(stores[0]), *(registration(f"job-{number}") for number in range(6)))

    async def look(watch: LogWatch) -> None:
        for _ in range(15):
            assert not await watch.look()

    async def decide(engine: Engine, job_id: str) -> None:
        trial = await begin(engine, job_id)
        for epoch in range(1, 10):
            await ask(engine, report(trial, epoch, job_id=job_id))

    async with asyncio.TaskGroup() as group:
        for index, store in enumerate(stores):
            watch = LogWatch(store.log_epochs)
            await watch.look()
            engine = Engine(store, watch=watch)
            for task in (
                look(watch),
                look(watch),
                *(decide(engine, f"job-{3 * index + number}") for number in range(3)),
            ):
                group.create_task(task)
    for number in range(6):
        await assert_log_equals_tables(stores[0], f"job-{number}")


async def test_where_the_store_knows_of_no_look_that_there_was_nothing_is_decided(open_another: OpenStore) -> None:
    store, other = open_another(), open_another()
    watch = LogWatch(store.log_epochs)
    engine = Engine(store, watch=watch)
    await watch.look()
    await ask(engine, registration())
    known = await log(store)
    assert watch.seen is not None
    watch.seen = replace(watch.seen, looked_at=watch.seen.looked_at + timedelta(hours=1))  # before the restore
    for _ in range(2):
        with pytest.raises(LogOutdated, match=r"older state.*bso restored"):
            await engine.execute([beginning()])
    assert await log(store) == known
    with pytest.raises(LogOutdated):
        await watch.look()
    late = LogWatch(other.log_epochs)
    with pytest.raises(LogOutdated, match="detected at"):
        await late.look()
    with pytest.raises(LogOutdated):
        await Engine(other, watch=late).execute([beginning()])
    await ask(Engine(other), beginning())  # without workers nobody watches
    assert len(await log(store)) > len(known)


async def test_after_another_epoch_has_begun_everybody_goes_on(open_another: OpenStore) -> None:
    store, other = open_another(), open_another()
    watches = [LogWatch(store.log_epochs), LogWatch(other.log_epochs)]
    engines = [Engine(store, watch=watches[0]), Engine(other, watch=watches[1])]
    for watch in watches:
        await watch.look()
    await ask(engines[0], registration())
    trial = await begin(engines[0])
    await store.log_epochs.look(lambda _: "a test")
    for watch in watches:
        with pytest.raises(LogOutdated):
            await watch.look()
    begun = await store.log_epochs.begin()
    await ask(engines[0], report(trial, 1))  # also before it has looked
    for watch in watches:
        assert await watch.look()
        assert not await watch.look()
    await ask(engines[1], report(trial, 2))
    assert (await epochs(store))[-2:] == [begun.number] * 2
    await assert_log_equals_tables(store)


async def test_an_event_id_that_was_given_before_is_never_recorded_again(store: Store) -> None:
    watch = LogWatch(store.log_epochs)
    engine = Engine(store, watch=watch)
    await watch.look()
    await ask(engine, registration(), beginning())
    assert watch.highest_event_id == await store.last_event_id()
    known = await log(store)
    watch.recorded([watch.highest_event_id + 5])  # before the restore
    with pytest.raises(LogOutdated, match="event_id"):
        await engine.execute([beginning()])
    with pytest.raises(LogOutdated, match="event_id"):
        await watch.look()
    assert await log(store) == known
    await store.log_epochs.begin()
    assert await watch.look()
    await ask(engine, beginning())
    await assert_log_equals_tables(store)


async def test_what_is_deleted_from_a_log_alarms_nobody(store: Store) -> None:
    """Neither the newest event, nor all of them, nor a whole job."""
    watch = LogWatch(store.log_epochs)
    engine = Engine(store, watch=watch)
    await watch.look()
    await ask(engine, registration("other"), registration(), beginning())
    await store.mark_published([stored.event_id for stored in await store.history()])
    highest = await store.last_event_id()
    async with store.unit_of_work() as uow:
        await uow.lock([JOB], creating=())
        await uow.forget_job(JOB)
        await uow.commit()
    assert await store.last_event_id() < highest
    assert not await watch.look()
    await ask(engine, registration())
    with pytest.raises(GivenUp):
        await Engine(SteppedStore(store, give_up), watch=watch).execute([beginning()])  # its event_id is used up
    await begin(engine)
    assert not await watch.look()
    assert watch.highest_event_id == await store.last_event_id() > highest
    await assert_log_equals_tables(store)


@pytest.mark.parametrize("database_url", [kind for kind in DATABASES if kind != "sqlite"], indirect=True)
async def test_a_look_does_not_wait_for_another_transaction_that_holds_the_epoch(open_another: OpenStore) -> None:
    store, rival = open_another(), open_another()
    assert isinstance(rival, SqlStore)
    watch = LogWatch(store.log_epochs)
    await watch.look()
    async with rival.engine.begin() as connection:
        await connection.execute(select(log_epoch).with_for_update())
        async with asyncio.timeout(5.0):  # less than any lock is waited for
            assert not await watch.look()
            assert await store.log_epochs.look(lambda _: "outdated") == watch.seen
    before = watch.seen
    await watch.look()
    assert before is not None
    assert watch.seen is not None
    assert watch.seen.looked_at > before.looked_at


@pytest.mark.parametrize("database_url", [kind for kind in DATABASES if kind != "sqlite"], indirect=True)
async def test_an_import_holds_the_epoch_only_while_it_commits(open_another: OpenStore) -> None:
    store = open_another()
    assert isinstance(store, SqlStore)
    await ask(Engine(store), registration(), beginning())
    page = await store.log_page(JOB)
    copies = [replace(one, new=replace(one.new, job_id="copy", command_id=f"c-{one.new.seq}")) for one in page]
    before = await store.log_epochs.current()
    assert before is not None
    async with store.locked_job("copy") as locked:
        assert await locked.append(copies) == len(page)
        assert await store.log_epochs.look(lambda _: None) != before, "recorded, so nobody holds the row"
        await locked.commit()
    after = await store.log_epochs.current()
    assert after is not None
    assert after.number > before.number
