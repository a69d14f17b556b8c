"""Events reach whoever follows them; stop decisions above all."""

import asyncio
import json

from bso.domain.events import TrialEnded
from bso.domain.replies import EpochJudged
from bso.domain.trial import Outcome
from bso.schema.codec import decode_event, published
from bso.schema.envelope import SCHEMA_VERSION
from bso.storage import SqlStore
from bso_broker.addresses import event_pattern
from bso_broker.rabbit import RabbitBroker
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.recurrences import Queue, begin, history, recur, register, report
from tests.servers import PATIENCE_S, eventually_async


async def test_a_stop_decision_reaches_those_who_follow_the_job(
    store: SqlStore, ask: Queue, amqp_url: str, start_worker: StartWorker
) -> None:
    start_worker().ready()
    job, other = "team.mnist+nightly:1", "team.mnist+nightly:2"
    await register(ask, job)
    await register(ask, other)
    subscriber = RabbitBroker(amqp_url).event_subscriber(event_pattern(event_type="trial_ended", job_id=job))
    await subscriber.start()
    await eventually_async(subscriber.connected.is_set)
    await recur(ask, other, "monday")
    await recur(ask, job, "monday")
    trial = await begin(ask, job, recurrence_id="tuesday")
    verdict = await ask(job, report(trial, 1, energy_j=10_000_000.0))
    assert isinstance(verdict, EpochJudged)
    assert verdict.outcome is Outcome.COST_EXCEEDED
    received: list[TrialEnded] = []
    async with asyncio.timeout(PATIENCE_S):
        async for event in subscriber:
            recorded = decode_event(event.body)
            assert recorded.job_id == job
            assert isinstance(recorded.event, TrialEnded)
            received.append(recorded.event)
            if recorded.event.trial_number == trial.trial_number:
                break
    assert received[-1].outcome is Outcome.COST_EXCEEDED
    assert received[-1].reason == verdict.reason
    await subscriber.close()


async def test_every_event_is_published_as_it_stands_in_the_log(
    store: SqlStore, ask: Queue, amqp_url: str, start_worker: StartWorker
) -> None:
    start_worker().ready()
    subscriber = RabbitBroker(amqp_url).event_subscriber()
    await subscriber.start()
    await eventually_async(subscriber.connected.is_set)
    await register(ask, "a-job")
    await recur(ask, "a-job", "monday")
    logged = [stored.recorded for stored in await history(store, "a-job")]
    received = []
    async with asyncio.timeout(PATIENCE_S):
        async for event in subscriber:
            received.append(decode_event(event.body))
            assert json.loads(event.body)["schema"] == SCHEMA_VERSION
            if len(received) == len(logged):
                break
    assert sorted(received, key=lambda recorded: recorded.seq) == [published(recorded) for recorded in logged]
    await subscriber.close()
