"""Which recorded events are published again, in which order, and how fast."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from bso.domain.errors import Misconfigured, Retryable
from bso.domain.log import RecordedEvent
from bso.replay.publication import Wanted, patient, publish
from bso.schema.codec import wire_name
from bso.service.engine import Engine
from bso.service.memory import InMemoryStore
from bso.service.records import StoredEvent
from tests.contract.storage.job_requests import ask, begin, registration, report

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def store() -> InMemoryStore:
    """Two jobs whose events were recorded in turn, with a clock that goes on by a minute with each look."""
    minutes = count()
    store = InMemoryStore(lambda: BEGAN + timedelta(minutes=next(minutes)))
    engine = Engine(store)
    for job_id in ("a", "b"):
        await ask(engine, registration(job_id))
    for job_id in ("a", "b"):
        trial = await begin(engine, job_id)
        await ask(engine, report(trial, 1, job_id=job_id), report(trial, 2, job_id=job_id, metric=0.99))
    return store


async def noted(store: InMemoryStore, wanted: Wanted, *, rate_per_s: float | None = None) -> list[RecordedEvent]:
    """What was published."""
    received: list[RecordedEvent] = []
    counted: list[int] = []

    async def send(events: Sequence[StoredEvent]) -> None:
        received.extend(one.recorded for one in events)

    sent = await publish(store, wanted, send, rate_per_s=rate_per_s, progress=counted.append)
    assert sent == len(received) == sum(counted)
    return received


async def test_everything_is_published_in_the_order_in_which_it_was_recorded(store: InMemoryStore) -> None:
    assert await noted(store, Wanted()) == [stored.recorded for stored in await store.history()]


async def test_jobs_are_published_one_after_another(store: InMemoryStore) -> None:
    received = await noted(store, Wanted(jobs=["b", "a", "b"]))
    assert [event.job_id for event in received] == sorted((event.job_id for event in received), reverse=True)
    assert len(received) == len(await store.history())
    assert await noted(store, Wanted(jobs=["nobody"])) == []


async def test_types_and_times_narrow_what_is_published(store: InMemoryStore) -> None:
    ends = await noted(store, Wanted(types=["trial_ended", "recurrence_ended"]))
    assert {wire_name(type(event.event)) for event in ends} == {"trial_ended", "recurrence_ended"}
    everything = await noted(store, Wanted())
    moment = everything[len(everything) // 2].recorded_at
    early, late = await noted(store, Wanted(before=moment)), await noted(store, Wanted(since=moment))
    assert early
    assert late[0].recorded_at == moment
    assert early + late == everything


async def test_the_rate_is_kept(store: InMemoryStore) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    received = await noted(store, Wanted(), rate_per_s=50.0)
    assert len(received) > 10
    assert loop.time() - began >= (len(received) - 5) / 50.0  # a tenth of a second's worth goes at once


async def test_what_sending_raises_ends_it(store: InMemoryStore) -> None:
    counted: list[int] = []

    async def send(events: Sequence[StoredEvent]) -> None:
        if counted:
            raise ConnectionError("the broker is away")

    with pytest.raises(ConnectionError):
        await publish(store, Wanted(), send, rate_per_s=20.0, progress=counted.append)
    assert counted == [2]


async def test_a_batch_that_did_not_go_out_is_sent_again_as_a_whole(store: InMemoryStore) -> None:
    tries: list[Sequence[StoredEvent]] = []
    received: list[RecordedEvent] = []
    said: list[str] = []

    async def send(events: Sequence[StoredEvent]) -> None:
        tries.append(events)
        if len(tries) in (2, 3, 5):
            raise Retryable(f"away at try {len(tries)}")
        received.extend(one.recorded for one in events)

    def say(error: Retryable) -> None:
        said.append(str(error))

    steady = patient(send, patience_s=60.0, on_failure=say, pause_s=0.0)
    sent = await publish(store, Wanted(), steady, rate_per_s=50.0)
    assert said == ["away at try 2", "away at try 5"]  # once until something has gone out again
    assert tries[1] == tries[2] == tries[3]
    assert tries[4] == tries[5]
    assert received == [stored.recorded for stored in await store.history()]
    assert sent == len(received)


async def test_patience_ends_and_what_would_never_succeed_ends_it_at_once(store: InMemoryStore) -> None:
    said: list[Retryable] = []
    for error, patience_s in ((Retryable("away"), 0.0), (Misconfigured("not permitted"), 60.0)):

        async def send(_: Sequence[StoredEvent], error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):
            await publish(store, Wanted(), patient(send, patience_s=patience_s, on_failure=said.append))
    assert not said


@pytest.fixture
async def imported() -> InMemoryStore:
    """Two jobs that lived at the same time, the events of one numbered after all of the other, as an import does."""
    minutes = count()
    store = InMemoryStore(lambda: BEGAN + timedelta(minutes=next(minutes)))
    for job_id in ("a", "b"):
        minutes = count()
        await ask(Engine(store), registration(job_id))
        trial = await begin(Engine(store), job_id)
        await ask(Engine(store), report(trial, 1, job_id=job_id), report(trial, 2, job_id=job_id, metric=0.99))
    return store


@pytest.mark.parametrize("jobs", [[], ["b", "a", "b"], ["b", "nobody", "a"]])
@pytest.mark.parametrize("since", [None, BEGAN + timedelta(minutes=1)])
async def test_after_any_batch_the_rest_is_what_has_not_gone_out(
    store: InMemoryStore, imported: InMemoryStore, jobs: list[str], since: datetime | None
) -> None:
    for history in (store, imported):
        wanted = Wanted(jobs=jobs, since=since)
        everything = await noted(history, wanted)
        rests: list[list[RecordedEvent]] = []

        async def send(
            events: Sequence[StoredEvent], history: InMemoryStore = history, wanted: Wanted = wanted, rests: Any = rests
        ) -> None:
            last = events[-1]
            left = list(dict.fromkeys(jobs))
            left = left[left.index(last.recorded.job_id) :] if left else left
            rests.append(await noted(history, replace(wanted, jobs=left, after=last.event_id)))

        await publish(history, wanted, send, rate_per_s=30.0)
        assert len(everything) > 6
        assert rests == [everything[n:] for n in [*range(3, len(everything), 3), len(everything)]]
