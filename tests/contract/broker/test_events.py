"""What every broker promises about events."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from bso_broker.addresses import event_pattern, routing_key
from bso_broker.errors import BrokerClosed
from bso_broker.messages import Event
from tests.contract.broker.stories import DEADLINE_S, started_replay_subscriber, started_subscriber
from tests.fakes.memory_broker import Broker, EventSource


async def received(subscriber: EventSource, count: int) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(DEADLINE_S):
        async for event in subscriber:
            events.append(event)
            if len(events) == count:
                break
    return events


async def test_a_subscriber_hears_events_as_they_were_published(broker: Broker, cleaning: AsyncExitStack) -> None:
    subscriber = await started_subscriber(broker, cleaning)
    published = Event(routing_key="trial_started.job", body=b"body", message_id="1", headers={"seq": 7})
    await broker.event_publisher().publish_batch([published])
    (event,) = await received(subscriber, 1)
    assert (event.routing_key, event.body, event.message_id) == ("trial_started.job", b"body", "1")
    assert dict(event.headers) == {"seq": 7}


async def test_a_subscriber_hears_only_what_its_patterns_match(broker: Broker, cleaning: AsyncExitStack) -> None:
    of_job = await started_subscriber(broker, cleaning, event_pattern(job_id="team.a"))
    of_type = await started_subscriber(broker, cleaning, event_pattern(event_type="trial_ended"))
    keys = [routing_key(kind, job) for kind in ("trial_started", "trial_ended") for job in ("team.a", "team.b")]
    await broker.event_publisher().publish_batch([Event(routing_key=k, body=b"", message_id=k) for k in keys])
    assert [e.routing_key for e in await received(of_job, 2)] == [keys[0], keys[2]]
    assert [e.routing_key for e in await received(of_type, 2)] == [keys[2], keys[3]]


async def test_a_replay_is_heard_by_those_who_asked_for_it_and_nobody_else(
    broker: Broker, cleaning: AsyncExitStack
) -> None:
    live, replay = await started_subscriber(broker, cleaning), await started_replay_subscriber(broker, cleaning)
    of_job = await started_replay_subscriber(broker, cleaning, event_pattern(job_id="team.a"))
    old = [
        Event(routing_key=routing_key("trial_ended", job), body=b"old", message_id=job) for job in ("team.b", "team.a")
    ]
    await broker.replay_publisher().publish_batch(old)
    assert [event.message_id for event in await received(replay, 2)] == ["team.b", "team.a"]
    assert [event.message_id for event in await received(of_job, 1)] == ["team.a"]
    news = Event(routing_key="trial_ended.news", body=b"new", message_id="news")
    await broker.event_publisher().publish_batch([news])
    assert [event.message_id for event in await received(live, 1)] == ["news"]
    more = Event(routing_key="trial_ended.more", body=b"old", message_id="more")
    await broker.replay_publisher().publish_batch([more])
    assert [event.message_id for event in await received(replay, 1)] == ["more"]


async def test_publishing_needs_no_subscriber_and_one_that_comes_later_hears_what_comes_after_it(
    broker: Broker, cleaning: AsyncExitStack
) -> None:
    events = [Event(routing_key="trial_started.job", body=b"", message_id=str(n)) for n in range(101)]
    await broker.event_publisher().publish_batch(events[:-1])
    await broker.event_publisher().publish_batch([])
    subscriber = await started_subscriber(broker, cleaning)
    await broker.event_publisher().publish_batch(events[-1:])
    assert [event.message_id for event in await received(subscriber, 1)] == ["100"]


async def test_iterating_over_a_closed_subscriber_ends(broker: Broker, cleaning: AsyncExitStack) -> None:
    subscriber = await started_subscriber(broker, cleaning)
    await subscriber.close()
    with pytest.raises(BrokerClosed):
        await received(subscriber, 1)


async def test_a_batch_may_hold_large_events_and_empty_ones(broker: Broker, cleaning: AsyncExitStack) -> None:
    subscriber = await started_subscriber(broker, cleaning)
    bodies = [b"", b"x" * 1_000_000, b"y"]
    events = [Event(routing_key="kind.job", body=body, message_id=str(n)) for n, body in enumerate(bodies)]
    await broker.event_publisher().publish_batch(events)
    assert [event.body for event in await received(subscriber, 3)] == bodies
