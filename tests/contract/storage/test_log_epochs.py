"""Epochs of the log: what is recorded in which, and a store that holds an older state than before."""

from collections.abc import Sequence

from bso.domain.log import FIRST_EPOCH
from bso.service.engine import Engine
from bso.service.ports import Store
from bso.service.records import StoredEvent
from bso.storage import SqlStore
from tests.contract.storage.training import JOB, ask, assert_log_equals_tables, beginning, registration


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
    assert [one.recorded.log_epoch for one in await store.unpublished(older_than_s=0.0)] == await epochs(store)
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
