"""The relay publishes what nobody has published, whatever else lies in the log before it."""

import pytest

from bso.service.engine import Engine
from bso.storage import SqlStore
from bso_workers.metrics import Metrics
from bso_workers.relay import Relay
from tests.fakes.memory_broker import MemoryBroker
from tests.integration.workers.recurrences import Direct, history, new_job, register
from tests.servers.sql import execute


async def test_a_thousand_events_that_cannot_be_read_keep_no_others_from_being_published(
    store: SqlStore, caplog: pytest.LogCaptureFixture
) -> None:
    ask, damaged, healthy = Direct(engine=Engine(store)), new_job(), new_job()
    await register(ask, damaged)
    columns = "type, trial_number, command_id, recorded_at"
    rows = " UNION ALL ".join(f"SELECT {number} AS number" for number in range(2, 1002))
    await execute(
        store,
        f"INSERT INTO event (job_id, seq, part, log_epoch, payload, {columns}) "
        f"SELECT job_id, number, number, 1, '[', {columns} FROM event, ({rows}) AS numbers WHERE job_id = '{damaged}'",
    )
    await register(ask, healthy)
    relay = Relay(store=store, sink=MemoryBroker().event_publisher(), metrics=Metrics(), age_s=0.0, interval_s=1.0)
    assert await relay.relay() == len(await history(store, healthy)) + 1
    page = await store.unpublished(older_than_s=0.0, limit=2000)
    assert (list(page.events), page.unreadable) == ([], 1000)
    assert await relay.relay() == 0
    (record,) = [record for record in caplog.records if getattr(record, "action", "") == "events_unreadable"]
    assert getattr(record, "events", 0) == 1000
    assert relay.obstacle is None
