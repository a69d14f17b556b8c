"""Answers that cannot be sent, and messages that cannot be set aside: they come again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bso.domain.commands import DescribeJob, RegisterJob
from bso.domain.replies import Problem
from bso.service.memory import InMemoryStore, InMemoryUnitOfWork
from bso.service.records import ParkedJob
from bso_broker.errors import MessageTooLarge, PublishFailed
from bso_broker.messages import Delivery, Event, Reply
from bso_workers.readiness import JOBS
from tests.fakes.memory_broker import MemoryBroker
from tests.fakes.memory_broker.consumer import MemoryConsumer
from tests.fakes.memory_broker.events import MemoryEventPublisher, MemoryReplyPublisher
from tests.integration.workers.fixtures import Clock, running_worker
from tests.integration.workers.recurrences import SPEC, Queue, audit, begin, new_job, recur, register
from tests.servers import PATIENCE_S, eventually_async

LATER = timedelta(minutes=1)


class FailingBroker(MemoryBroker):
    """A broker in memory that refuses what it is told to refuse, so many times."""

    def __init__(self) -> None:
        super().__init__(user="trainer")
        self.unsendable_batches = 0
        self.takes_replies = asyncio.Event()
        self.takes_replies.set()
        self.too_large = ""
        self.dead_letters_refused = 0
        self.events_refused = 0

    def reply_publisher(self) -> MemoryReplyPublisher:
        return _Replies(self)

    def event_publisher(self) -> MemoryEventPublisher:
        return _Events(self)

    def command_consumer(self, **limits: Any) -> MemoryConsumer:
        return _Consumer(self, **limits)


class _Replies(MemoryReplyPublisher):
    def __init__(self, broker: FailingBroker) -> None:
        super().__init__(broker.wire)
        self._broker = broker

    async def reply_batch(self, replies: Sequence[Reply], *, timeout_s: float = 5.0) -> None:
        if self._broker.unsendable_batches:
            self._broker.unsendable_batches -= 1
            raise PublishFailed("nobody takes replies")
        await self._broker.takes_replies.wait()
        if self._broker.too_large and any(self._broker.too_large.encode() in reply.body for reply in replies):
            raise MessageTooLarge("too large")
        await super().reply_batch(replies, timeout_s=timeout_s)


class _Events(MemoryEventPublisher):
    def __init__(self, broker: FailingBroker) -> None:
        super().__init__(broker.wire)
        self._broker = broker

    async def publish_batch(self, events: Sequence[Event], *, timeout_s: float = 10.0) -> None:
        if self._broker.events_refused:
            self._broker.events_refused -= 1
            raise PublishFailed("nobody takes events")
        if self._broker.too_large and any(self._broker.too_large.encode() in event.body for event in events):
            raise MessageTooLarge("too large")
        await super().publish_batch(events, timeout_s=timeout_s)


class _Consumer(MemoryConsumer):
    def __init__(self, broker: FailingBroker, **limits: Any) -> None:
        super().__init__(broker.wire, batch_limit=limits["batch_limit"])
        self._broker = broker

    async def dead_letter(
        self, delivery: Delivery, *, reason: str, sender: str | None, timeout_s: float = 10.0
    ) -> None:
        if self._broker.dead_letters_refused:
            self._broker.dead_letters_refused -= 1
            raise PublishFailed("nobody takes dead letters")
        await super().dead_letter(delivery, reason=reason, sender=sender, timeout_s=timeout_s)


async def test_what_could_not_be_answered_is_answered_later_with_the_same(memory_store: InMemoryStore) -> None:
    broker, job = FailingBroker(), new_job()
    async with running_worker(broker, memory_store) as parts, Queue(broker=broker) as ask:
        await register(ask, job)
        broker.unsendable_batches = 3
        trial = await begin(ask, job)
        assert trial.trial_number == 1
        assert parts.metrics.registry.get_sample_value("bso_unsent_replies_total") == 3
        assert parts.readiness.is_ready
    assert await audit(memory_store, job) == 1


async def test_a_worker_whose_replies_cannot_be_sent_is_not_ready_and_says_why(memory_store: InMemoryStore) -> None:
    broker, job = FailingBroker(), new_job()
    async with running_worker(broker, memory_store) as parts, Queue(broker=broker) as ask:
        await register(ask, job)
        broker.unsendable_batches = 1
        broker.takes_replies.clear()
        pending = asyncio.create_task(begin(ask, job))
        await eventually_async(lambda: "replies" in parts.readiness.reasons(), what="the obstacle")
        assert "nobody takes replies" in parts.readiness.reasons()["replies"]
        broker.takes_replies.set()
        assert (await pending).trial_number == 1
        await eventually_async(lambda: parts.readiness.is_ready, what="a ready worker")


async def test_a_worker_whose_events_cannot_be_published_is_not_ready_and_says_why(memory_store: InMemoryStore) -> None:
    broker = FailingBroker()
    async with running_worker(broker, memory_store, relay_age_s=0.1) as parts, Queue(broker=broker) as ask:
        broker.events_refused = 1_000_000
        await register(ask, new_job())
        await eventually_async(lambda: "events" in parts.readiness.reasons(), what="the obstacle")
        assert "nobody takes events" in parts.readiness.reasons()["events"]
        broker.events_refused = 0
        await eventually_async(lambda: parts.readiness.is_ready, what="a ready worker")


async def test_a_worker_that_sees_many_jobs_in_trouble_says_so_and_is_not_ready(
    memory_store: InMemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)

    async def parked() -> Sequence[ParkedJob]:
        return [
            ParkedJob(job_id=f"job-{number}", reason="", parked_at=now, retry_at=now + LATER) for number in range(10)
        ]

    async with running_worker(FailingBroker(), memory_store) as parts:
        with monkeypatch.context() as patch:
            patch.setattr(memory_store.parked_jobs, "all", parked)
            await eventually_async(lambda: JOBS in parts.readiness.reasons(), what="the obstacle")
            assert parts.readiness.reasons()[JOBS] == "10 jobs are in trouble"
        await eventually_async(lambda: parts.readiness.is_ready, what="a ready worker")


async def test_an_answer_that_is_too_large_for_the_broker_stops_no_others(memory_store: InMemoryStore) -> None:
    broker = FailingBroker()
    async with running_worker(broker, memory_store) as parts, Queue(broker=broker) as ask:
        await register(ask, "large-job")
        await register(ask, "small-job")
        broker.too_large = "large-job"
        large = asyncio.create_task(ask("large-job", DescribeJob()))
        others = await asyncio.gather(*(ask("small-job", DescribeJob()) for _ in range(5)))
        assert not any(isinstance(reply, Problem) for reply in others)
        async with asyncio.timeout(PATIENCE_S):
            told = await large
        assert isinstance(told, Problem)
        assert told.type == "reply_impossible"
        await eventually_async(lambda: parts.worker.busy_for_s() == 0)
        async with broker.dead_letters() as box:
            assert (await box.counts()).commands == 0


async def test_what_could_not_be_set_aside_is_set_aside_later(memory_store: InMemoryStore) -> None:
    broker = FailingBroker()
    async with running_worker(broker, memory_store), broker.dead_letters() as box:
        broker.dead_letters_refused = 1
        client = broker.rpc_client()
        await client.start()
        await client.call(b"not json", message_id="1", timeout_s=PATIENCE_S)

        async def is_set_aside() -> bool:
            return (await box.counts()).dead_letters == 1

        await eventually_async(is_set_aside)
        await client.close()


async def test_events_that_could_not_be_published_are_left_to_the_relay(
    store_by_clock: InMemoryStore, clock: Clock
) -> None:
    broker, job = FailingBroker(), new_job()
    broker.events_refused = 2
    async with running_worker(broker, store_by_clock, relay_age_s=60.0) as parts, Queue(broker=broker) as ask:
        await register(ask, job)
        await recur(ask, job, "monday")
        await parts.outbox.flushed()
        left = (await store_by_clock.unpublished(older_than_s=0.0)).events
        assert left
        clock.forward(61.0)

        async def all_published() -> bool:
            return not (await store_by_clock.unpublished(older_than_s=0.0)).events

        await eventually_async(all_published)
        assert parts.metrics.registry.get_sample_value("bso_events_relayed_total") == len(left)


async def test_an_event_that_is_too_large_for_the_broker_stops_no_others(memory_store: InMemoryStore) -> None:
    broker = FailingBroker()
    broker.too_large = "large-job"
    async with running_worker(broker, memory_store, relay_age_s=0.1) as parts, Queue(broker=broker) as ask:
        await asyncio.gather(register(ask, "small-job"), ask("large-job", RegisterJob(spec=SPEC)))

        async def all_published() -> bool:
            return not (await memory_store.unpublished(older_than_s=0.0)).events

        await eventually_async(all_published)
        assert parts.readiness.is_ready


class _TwiceBroken(InMemoryStore):
    """Fails in a way that nobody foresaw, twice: in a batch, and then over each of its commands alone."""

    def __init__(self) -> None:
        super().__init__(lambda: datetime.now(UTC))
        self.failures = 2

    @asynccontextmanager
    async def unit_of_work(self) -> AsyncIterator[InMemoryUnitOfWork]:
        if self.failures:
            self.failures -= 1
            raise ZeroDivisionError("a bug")
        async with super().unit_of_work() as uow:
            yield uow


async def test_whoever_sent_what_could_not_be_set_aside_hears_only_what_becomes_of_it() -> None:
    broker = FailingBroker()
    broker.dead_letters_refused = 1
    async with running_worker(broker, _TwiceBroken()), Queue(broker=broker) as ask:
        assert not isinstance(await register(ask, new_job()), Problem)
