"""What a worker does when a decision, the database or the broker fails; all in memory."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from bso.domain.commands import BeginTrial, DescribeJob, RegisterJob, Request
from bso.domain.errors import BsoError
from bso.domain.replies import Problem
from bso.schema.codec import decode_reply
from bso.service.answers import Answer, Undecided
from bso.service.engine import Engine
from bso.service.errors import JobHeld, SchemaMissing, StoreNotReady, StoreRefused, StoreUnavailable
from bso.service.memory import InMemoryStore, InMemoryUnitOfWork
from bso.service.parked_jobs import InMemoryParkedJobs
from bso.service.ports import Store
from bso.service.records import SchemaState, SchemaStatus, StoredEvent
from bso_broker.topology import DELIVERY_LIMIT
from bso_workers import bootstrap
from bso_workers.admission import Admitted, Undecidable
from bso_workers.intake import rest_after
from bso_workers.settlement import Settlement
from tests.contract.storage.doubles import HeldCommit, SteppedStore, rule_that_takes
from tests.fakes.memory_broker import MemoryBroker
from tests.integration.workers.fixtures import Clock, RunWorker, running_worker
from tests.integration.workers.recurrences import (
    HARDWARE,
    SPEC,
    Queue,
    audit,
    begin,
    history,
    new_job,
    recur,
    register,
    report,
)
from tests.servers import PATIENCE_S, eventually_async


class FailingParkedJobs(InMemoryParkedJobs):
    """Cannot be written while its store fails."""

    def __init__(self, store: "FailingStore") -> None:
        super().__init__(lambda: datetime.now(UTC))
        self._store = store

    async def park(self, job_id: str, *, reason: str, pause_s: float) -> None:
        self._store.fail()
        await super().park(job_id, reason=reason, pause_s=pause_s)

    async def try_writing(self) -> None:
        self._store.fail()


class FailingStore(InMemoryStore):
    """Fails as told, and otherwise is a store in memory."""

    def __init__(self) -> None:
        super().__init__(lambda: datetime.now(UTC))
        self.parked_jobs = FailingParkedJobs(self)
        self.failure: Exception | None = None
        self.bad_job: str | None = None
        self.schema = SchemaStatus.CURRENT
        self.tries = 0

    def fail(self) -> None:
        """Raise the failure that a test has set."""
        self.tries += 1
        if self.failure is not None:
            raise self.failure

    @asynccontextmanager
    async def unit_of_work(self) -> AsyncIterator[InMemoryUnitOfWork]:
        self.fail()
        async with super().unit_of_work() as uow:
            yield _Picky(uow, self.bad_job)  # type: ignore[misc]  # all that the engine calls is there

    async def schema_state(self) -> SchemaState:
        return SchemaState(found="x", expected="y", status=self.schema)


class _Picky:
    """A unit of work that breaks over one job, on each way to its lock."""

    def __init__(self, uow: InMemoryUnitOfWork, bad_job: str | None) -> None:
        self._uow = uow
        self._bad_job = bad_job

    async def lock(self, job_ids: Collection[str], *, creating: Collection[str]) -> object:
        if self._bad_job in job_ids:
            raise ZeroDivisionError("a bug")
        return await self._uow.lock(job_ids, creating=creating)

    async def try_lock(self, job_ids: Collection[str], **asked: Any) -> object:
        if self._bad_job in job_ids:
            raise ZeroDivisionError("a bug")
        return await self._uow.try_lock(job_ids, **asked)

    def __getattr__(self, name: str) -> object:
        return getattr(self._uow, name)


@pytest.fixture
def failing_store() -> FailingStore:
    return FailingStore()


@pytest.fixture
async def ask(memory_broker: MemoryBroker) -> AsyncIterator[Queue]:
    await memory_broker.declare()
    async with Queue(broker=memory_broker) as ask:
        yield ask


@pytest.mark.parametrize(
    "failure",
    [StoreUnavailable("away"), StoreRefused("read-only"), SchemaMissing("no such table"), StoreNotReady("new")],
)
async def test_a_database_that_fails_pauses_the_worker_and_is_nobodys_poison(
    memory_broker: MemoryBroker, failing_store: FailingStore, ask: Queue, failure: BsoError
) -> None:
    async with running_worker(memory_broker, failing_store) as parts:
        job = new_job()
        await register(ask, job)
        failing_store.failure = failure
        pending = asyncio.create_task(begin(ask, job))
        await eventually_async(lambda: not parts.readiness.is_ready)
        assert parts.readiness.reasons() == {
            "database": str(failure),
            "broker": "paused, as the database cannot be used",
        }
        tried = failing_store.tries
        await eventually_async(lambda: failing_store.tries > tried + 1, what="more tries")
        failing_store.failure = None
        assert (await pending).trial_number == 1
        await eventually_async(lambda: parts.readiness.is_ready)
        async with memory_broker.dead_letters() as box:
            assert (await box.counts()).dead_letters == 0
    assert await audit(failing_store, job) == 1


async def test_while_the_database_is_away_commands_wait_in_the_queue(
    memory_broker: MemoryBroker, failing_store: FailingStore, ask: Queue
) -> None:
    async with running_worker(memory_broker, failing_store) as parts:
        failing_store.failure = StoreUnavailable("away")
        pending = [asyncio.create_task(register(ask, new_job())) for _ in range(50)]
        await eventually_async(lambda: not parts.readiness.is_ready)
        async with memory_broker.dead_letters() as box:
            await eventually_async(lambda: _waiting(box, 50))
        failing_store.failure = None
        assert all(reply.is_new for reply in await asyncio.gather(*pending))


async def _waiting(box: object, count: int) -> bool:
    return bool((await box.counts()).commands == count)  # type: ignore[attr-defined]  # any DeadLetterBox


@pytest.mark.parametrize("status", [SchemaStatus.MISSING, SchemaStatus.OLDER, SchemaStatus.NEWER])
async def test_a_wrong_schema_is_waited_for_and_told(
    memory_broker: MemoryBroker, failing_store: FailingStore, ask: Queue, status: SchemaStatus
) -> None:
    failing_store.schema = status
    async with running_worker(memory_broker, failing_store, is_ready=False) as parts:
        pending = asyncio.create_task(register(ask, new_job()))
        hint = "upgrade" if status is SchemaStatus.NEWER else "bso migrate"
        await eventually_async(lambda: hint in parts.readiness.reasons().get("database", ""))
        assert not pending.done()
        failing_store.schema = SchemaStatus.CURRENT
        assert (await pending).is_new


async def test_a_schema_that_becomes_newer_stops_the_intake(
    memory_broker: MemoryBroker, failing_store: FailingStore
) -> None:
    async with running_worker(memory_broker, failing_store) as parts:
        failing_store.schema = SchemaStatus.NEWER
        await eventually_async(lambda: "upgrade" in parts.readiness.reasons().get("database", ""))
        failing_store.schema = SchemaStatus.CURRENT
        await eventually_async(lambda: parts.readiness.is_ready)


async def test_a_command_that_alone_fails_in_an_unforeseen_way_is_set_aside(
    memory_broker: MemoryBroker, failing_store: FailingStore, ask: Queue
) -> None:
    good, bad = new_job(), new_job()
    failing_store.bad_job = bad
    async with running_worker(memory_broker, failing_store) as parts:
        both = asyncio.gather(ask(bad, RegisterJob(spec=SPEC)), ask(good, RegisterJob(spec=SPEC)))
        problem, registered = await both
        assert isinstance(problem, Problem)
        assert problem.type == "undecidable"
        assert not isinstance(registered, Problem)
        assert parts.readiness.is_ready
        async with memory_broker.dead_letters() as box:
            (letter,) = await box.peek()
        assert letter.reason == "poison: ZeroDivisionError: a bug"
        assert letter.user_id == "trainer"


async def test_commands_of_several_types_over_which_everything_fails_park_their_job(
    memory_broker: MemoryBroker, failing_store: FailingStore, ask: Queue
) -> None:
    """The first is its own fault, and set aside; the next one of another type shows that it lies in the job."""
    good, bad = new_job(), new_job()
    async with running_worker(memory_broker, failing_store) as parts:
        for job in (good, bad):
            await register(ask, job)
        trial = await begin(ask, bad)
        failing_store.bad_job = bad
        first = await ask(bad, BeginTrial(hardware=HARDWARE))
        second = await ask(bad, report(trial, 1))
        third = await ask(bad, BeginTrial(hardware=HARDWARE))
        problems = [reply for reply in (first, second, third) if isinstance(reply, Problem)]
        assert [problem.type for problem in problems] == ["undecidable", "kept", "job_in_trouble"]
        assert [problem.retry_after_s is not None for problem in problems] == [False, True, True]
        assert (await begin(ask, good)).trial_number == 1
        assert parts.readiness.is_ready
        (parked,) = await failing_store.parked_jobs.all()
        assert (parked.job_id, "different types" in parked.reason) == (bad, True)
        failing_store.bad_job = None
        await eventually_async(lambda: _reports(failing_store, bad), what="the report that was kept")
        assert await failing_store.parked_jobs.all() == []
        async with memory_broker.dead_letters() as box:
            (letter,) = await box.peek()
        assert letter.reason == "poison: ZeroDivisionError: a bug"
    assert await audit(failing_store, bad) == 1


async def _reports(store: InMemoryStore, job_id: str) -> bool:
    return (await store.trials(job_id))[0].reports == 1


async def test_a_broker_that_goes_away_and_comes_back_loses_nothing(
    memory_broker: MemoryBroker, memory_store: InMemoryStore, ask: Queue, run_worker: RunWorker
) -> None:
    async with run_worker(memory_broker, memory_store) as parts:
        job = new_job()
        await register(ask, job)
        trial = await begin(ask, job, recurrence_id="monday")
        memory_broker.go_away()
        await eventually_async(lambda: not parts.readiness.is_ready)
        assert "broker" in parts.readiness.reasons()
        pending = asyncio.create_task(begin(ask, job, recurrence_id="tuesday"))
        memory_broker.come_back()
        assert (await pending).trial_number == trial.trial_number + 1
        await eventually_async(lambda: parts.readiness.is_ready)


async def test_poison_is_set_aside_once_and_the_rest_of_its_batch_is_answered(
    memory_broker: MemoryBroker, failing_store: FailingStore, ask: Queue
) -> None:
    failing_store.bad_job = "cursed"
    async with running_worker(memory_broker, failing_store, batch_limit=10):
        replies = await asyncio.gather(
            *(ask("cursed" if number == 4 else f"fine-{number}", RegisterJob(spec=SPEC)) for number in range(10))
        )
    assert [isinstance(reply, Problem) for reply in replies] == [number == 4 for number in range(10)]
    async with memory_broker.dead_letters() as box:
        assert (await box.counts()).dead_letters == 1


async def test_events_are_published_and_marked(
    memory_broker: MemoryBroker, memory_store: InMemoryStore, ask: Queue, run_worker: RunWorker
) -> None:
    heard: list[str] = []
    subscriber = memory_broker.event_subscriber()
    await subscriber.start()
    async with run_worker(memory_broker, memory_store):
        job = new_job()
        await register(ask, job)
        await recur(ask, job, "monday")
    expected = [f"{job}:1:{stored.recorded.seq}" for stored in await history(memory_store, job)]
    async for event in subscriber:
        heard.append(event.message_id)
        if len(heard) == len(expected):
            break
    assert heard == expected
    assert list((await memory_store.unpublished(older_than_s=0.0)).events) == []


async def test_what_was_not_published_is_relayed_once_it_is_old(
    memory_broker: MemoryBroker, store_by_clock: InMemoryStore, clock: Clock, ask: Queue, run_worker: RunWorker
) -> None:
    job = new_job()
    async with run_worker(memory_broker, store_by_clock, relay_age_s=60.0) as parts:
        await register(ask, job)
        await parts.outbox.flushed()
        forgotten = await history(store_by_clock, job)
        _forget_that_they_were_published(store_by_clock, forgotten)
        subscriber = memory_broker.event_subscriber()
        await subscriber.start()
        clock.forward(61.0)
        async for event in subscriber:
            assert event.message_id == f"{job}:1:1"
            break
        await eventually_async(lambda: _all_published(store_by_clock))
        assert parts.metrics.registry.get_sample_value("bso_events_relayed_total") == len(forgotten)


def _forget_that_they_were_published(store: InMemoryStore, events: Sequence[StoredEvent]) -> None:
    for event in events:
        row = store.tables.events[event.event_id]
        store.tables.events[event.event_id] = replace(row, is_published=False)


async def _all_published(store: InMemoryStore) -> bool:
    return not (await store.unpublished(older_than_s=0.0)).events


async def test_the_same_command_again_gets_the_same_answer_and_no_new_events(
    memory_broker: MemoryBroker, memory_store: InMemoryStore, ask: Queue, run_worker: RunWorker
) -> None:
    async with run_worker(memory_broker, memory_store) as parts:
        job, command_id = new_job(), str(uuid.uuid4())
        await register(ask, job)
        first = await begin(ask, job, command_id=command_id)
        assert await begin(ask, job, command_id=command_id) == first
        repeated = parts.metrics.registry.get_sample_value(
            "bso_commands_total", {"type": "begin_trial", "result": "repeated"}
        )
        assert repeated == 1
    assert await audit(memory_store, job) == 1


@pytest.mark.parametrize(("batch_limit", "prefetch"), [(4, 16), (8, 8)])
async def test_while_a_batch_waits_for_the_database_others_are_decided(
    memory_broker: MemoryBroker,
    memory_store: InMemoryStore,
    ask: Queue,
    monkeypatch: pytest.MonkeyPatch,
    *,
    batch_limit: int,
    prefetch: int,
) -> None:
    gate = asyncio.Event()

    class Waiting(Engine):
        async def attempt(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
            if any(request.job_id == "far" for request in requests):
                await gate.wait()
            return await super().attempt(requests)

    monkeypatch.setattr(bootstrap, "Engine", Waiting)
    async with running_worker(memory_broker, memory_store, batch_limit=batch_limit, prefetch=prefetch):
        waiting = [asyncio.create_task(register(ask, "far")) for _ in range(20)]
        await asyncio.sleep(0)  # noqa: TID251  all are sent first
        await register(ask, "near")
        declined = [task for task in waiting if task.done()]
        gate.set()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
    busy = [end for end in ends if isinstance(end, AssertionError)]
    assert all("job_busy" in str(end) for end in busy)
    assert len(declined) == len(busy) == 20 - prefetch // 2, "but for half of what is prefetched"
    assert await audit(memory_store, "far") == 0


async def test_batches_are_filled_round_robin_over_the_jobs_and_keep_the_order_within_a_job(
    memory_broker: MemoryBroker, memory_store: InMemoryStore, ask: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[str]] = []

    class Noting(Engine):
        async def attempt(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
            batches.append([request.command_id for request in requests])
            return await super().attempt(requests)

    monkeypatch.setattr(bootstrap, "Engine", Noting)
    await memory_broker.declare()
    names = [*(f"hot-{number}" for number in range(6)), "one-1", "two-1", "two-2"]
    asked = [
        asyncio.create_task(ask(name.partition("-")[0], DescribeJob(), command_id=command_id(name))) for name in names
    ]
    await eventually_async(lambda: len(memory_broker.wire.waiting) == len(names), what="commands that wait")
    async with running_worker(memory_broker, memory_store, batch_limit=5, prefetch=32):
        await asyncio.gather(*asked)
    assert batches[0] == [command_id(name) for name in ("hot-0", "one-1", "two-1", "hot-1", "two-2")]
    assert [one for batch in batches[1:] for one in batch] == [command_id(f"hot-{number}") for number in range(2, 6)]


class Shared(Engine):
    """Another worker holds the jobs whose names begin with ``held``, for the first ``most`` attempts."""

    def __init__(self, *args: Any, most: int, batches: list[list[str]], **options: Any) -> None:
        super().__init__(*args, **options)
        self._most = most
        self._batches_seen = batches

    async def attempt(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
        self._batches_seen.append([request.command_id for request in requests])
        is_held = len(self._batches_seen) <= self._most
        held = [one for one in requests if one.job_id.startswith("held") and is_held]
        found = iter(await super().attempt([one for one in requests if one not in held]))
        return [
            Undecided(request=one, cause=JobHeld(one.job_id, last_seq=0)) if one in held else next(found)
            for one in requests
        ]


async def test_jobs_that_another_worker_holds_are_tried_again_together(
    memory_broker: MemoryBroker, memory_store: InMemoryStore, ask: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[str]] = []
    monkeypatch.setattr(bootstrap, "Engine", partial(Shared, most=1, batches=batches))
    await memory_broker.declare()
    names = ["free-1", "held1-1", "held1-2", "held2-1", "held3-1"]
    asked = [
        asyncio.create_task(ask(name.partition("-")[0], DescribeJob(), command_id=command_id(name))) for name in names
    ]
    await eventually_async(lambda: len(memory_broker.wire.waiting) == len(names), what="commands that wait")
    async with running_worker(memory_broker, memory_store, batch_limit=5):
        await asyncio.gather(*asked)
    in_turn = [command_id(name) for name in ("free-1", "held1-1", "held2-1", "held3-1", "held1-2")]
    assert batches == [in_turn, in_turn[1:]]


async def test_commands_that_come_for_a_job_while_it_is_held_are_decided_after_those_before(
    memory_broker: MemoryBroker, memory_store: InMemoryStore, ask: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[str]] = []
    monkeypatch.setattr(bootstrap, "Engine", partial(Shared, most=5, batches=batches))
    async with running_worker(memory_broker, memory_store):
        names = [f"held-{number}" for number in range(6)]
        asked = []
        for number, name in enumerate(names):
            asked.append(asyncio.create_task(ask("held", DescribeJob(), command_id=command_id(name))))
            await eventually_async(partial(lambda before: len(batches) > before, number), what="one more attempt")
        await asyncio.gather(*asked)
    decided = [one for batch in batches[5:] for one in batch]
    assert list(dict.fromkeys(decided)) == [command_id(name) for name in names]


async def test_a_job_that_another_worker_holds_for_long_goes_alone(
    memory_broker: MemoryBroker, memory_store: InMemoryStore, ask: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[str]] = []
    monkeypatch.setattr(bootstrap, "Engine", partial(Shared, most=10**6, batches=batches))  # but who waits gets it
    async with running_worker(memory_broker, memory_store) as parts:
        asking = asyncio.create_task(ask("held", DescribeJob()))
        await eventually_async(lambda: parts.worker.has_lane("held"), what="a lane")
        assert len(batches) > 1, "it was tried with others first"
        await ask("free", DescribeJob())
        await asking
    assert await memory_store.parked_jobs.all() == []


@pytest.mark.parametrize("costly", [True, False])
async def test_too_much_cpu_and_a_slow_store_are_told_apart_in_readiness_and_logs(
    memory_broker: MemoryBroker,
    memory_store: InMemoryStore,
    ask: Queue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    costly: bool,
) -> None:
    used = memory_store if costly else SteppedStore(memory_store, HeldCommit())
    words = "too much CPU" if costly else "the store did not answer within 0.2 s"
    rule = rule_that_takes(0.15 if costly else 0.0, job_id="slow")

    class Slow(Engine):
        def __init__(self, store: Store, *args: Any, **options: Any) -> None:
            super().__init__(used, *args, rule=rule, **options)

    monkeypatch.setattr(bootstrap, "Engine", Slow)
    async with running_worker(memory_broker, memory_store, database_timeout_s=0.2) as parts:
        asking = [asyncio.create_task(ask("slow", DescribeJob())) for _ in range(2)]
        await eventually_async(lambda: words in parts.readiness.reasons().get("transactions", ""), what="the reason")
        (line,) = [record for record in caplog.records if getattr(record, "action", "") == "batch_failed"]
        assert words in vars(line)["reason"]
        for one in asking:
            one.cancel()


def command_id(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


async def test_facts_are_never_declined_and_a_worker_is_idle_when_its_batches_have_ended(
    memory_broker: MemoryBroker, memory_store: InMemoryStore, ask: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, has_a_batch = asyncio.Event(), asyncio.Event()
    gate.set()

    class Waiting(Engine):
        async def attempt(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
            if not gate.is_set():
                has_a_batch.set()
            await gate.wait()
            return await super().attempt(requests)

    monkeypatch.setattr(bootstrap, "Engine", Waiting)
    async with running_worker(memory_broker, memory_store, batch_limit=4, prefetch=16) as parts:
        await register(ask, "job")
        trial = await begin(ask, "job")
        gate.clear()
        kept = [asyncio.create_task(ask("job", report(trial, 1, epoch=number / 20))) for number in range(1, 17)]
        async with asyncio.timeout(PATIENCE_S):
            await has_a_batch.wait()
        gate.set()
        replies = await asyncio.gather(*kept)
        assert not [reply for reply in replies if isinstance(reply, Problem)]
        await eventually_async(lambda: parts.worker.busy_for_s() == 0.0, what="an idle worker")
    assert (await memory_store.trials("job"))[0].reports == 16


def test_a_database_that_comes_and_goes_does_not_use_up_the_deliveries_of_commands_within_minutes() -> None:
    rest_s, rests_s = 0.0, list[float]()
    for _ in range(DELIVERY_LIMIT):
        rest_s = rest_after(rest_s, open_s=1.0)
        rests_s.append(rest_s)
    assert rests_s[:4] == [0.5, 1.0, 2.0, 4.0]
    assert sum(rests_s) > 300.0
    assert rest_after(rest_s, open_s=60.0) == 0.0, "it was there for long"


async def test_an_unforeseen_error_between_deciding_and_answering_ends_no_worker(
    memory_broker: MemoryBroker, memory_store: InMemoryStore, ask: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"answer": 2, "refuse": 2}

    def break_for_now(method: str) -> None:
        wrong[method] -= 1
        if wrong[method] >= 0:
            raise RuntimeError("nobody foresaw this")

    class Breaking(Settlement):
        async def answer(self, admitted: Sequence[Admitted], answers: Sequence[Answer]) -> None:
            break_for_now("answer")
            await super().answer(admitted, answers)

        async def refuse(self, refused: Undecidable) -> None:
            break_for_now("refuse")
            await super().refuse(refused)

    monkeypatch.setattr(bootstrap, "Settlement", Breaking)
    async with running_worker(memory_broker, memory_store):
        await register(ask, "job")
        client = memory_broker.rpc_client()
        await client.start()
        refused = decode_reply(await client.call(b"no command", message_id="1", timeout_s=PATIENCE_S))
        await client.close()
        assert isinstance(refused, Problem)
        assert refused.type == "malformed"
        await begin(ask, "job")
    assert max(wrong.values()) < 0, "both went wrong twice, and then right"
    assert await audit(memory_store, "job") == 1


async def test_a_job_whose_decisions_take_long_is_waited_for_by_no_other(
    memory_broker: MemoryBroker, memory_store: InMemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    costly, other = "costly", "other"
    slow = partial(Engine, rule=rule_that_takes(0.01, job_id=costly))
    monkeypatch.setattr(bootstrap, "Engine", slow)
    async with (
        running_worker(memory_broker, memory_store, batch_limit=32),
        Queue(broker=memory_broker, is_patient=True) as ask,
    ):
        for job in (costly, other):
            await register(ask, job)
        await begin(ask, costly)  # shows what it costs
        answered = 0

        async def begin_costly(number: int) -> None:
            nonlocal answered
            await begin(ask, costly, recurrence_id=f"row-{number}")
            answered += 1

        lanes = [asyncio.create_task(begin_costly(number)) for number in range(100)]
        await eventually_async(lambda: answered > 0, what="a first answer of the costly job")
        before = answered
        for number in range(3):
            await begin(ask, other, recurrence_id=f"row-{number}")
        assert answered - before <= 48, "three answers of the other job came before most of the costly one's"
        await asyncio.gather(*lanes)
    assert await audit(memory_store, costly) == 101
    assert await audit(memory_store, other) == 3


@pytest.mark.parametrize(
    ("part", "method"),
    [
        ("intake", "schema_state"),
        ("outbox", "mark_published"),
        ("relay", "unpublished"),
        ("reaper", "lapsed_leases"),
    ],
)
async def test_an_unforeseen_error_in_a_loop_does_not_end_the_worker(
    memory_broker: MemoryBroker, failing_store: FailingStore, ask: Queue, part: str, method: str
) -> None:
    works = getattr(failing_store, method)
    calls: list[str] = []

    async def fails_at_first(*given: object, **options: object) -> object:
        calls.append(method)
        if len(calls) <= 2:
            raise TypeError("nobody foresaw this")
        return await works(*given, **options)

    async with running_worker(memory_broker, failing_store, lease_s=0.01) as parts:
        setattr(failing_store, method, fails_at_first)
        job = new_job()
        await register(ask, job)
        while len(calls) <= 2:
            await ask(job, BeginTrial(hardware=HARDWARE))
        await eventually_async(lambda: parts.readiness.is_ready)
        assert parts.metrics.registry.get_sample_value("bso_unforeseen_errors_total", {"part": part})
        await register(ask, new_job())
