"""Logs with gaps, and what a newer release has written."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from bso.domain.decide import Rules
from bso.domain.learning_rate import LearningRate
from bso.domain.replies import Problem, Registered
from bso.domain.trial import Outcome
from bso.replay.fold import LogBroken
from bso.schema.errors import StateTooNew
from bso.service.engine import Engine
from bso.service.leases import expiry_of
from bso.service.memory import InMemoryStore
from bso.service.records import LoggedEvent, NewEvent, StoredEvent
from bso.service.retention import prune_events, purge_jobs
from bso.service.serialization import epoch_report_of, recorded_from
from tests.contract.storage.job_requests import (
    JOB,
    Campaign,
    ask,
    begin,
    comparable,
    finish,
    folded,
    registration,
    report,
    whole_history,
    without_lease,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SOON = NOW + timedelta(hours=1)


@pytest.fixture
def store() -> InMemoryStore:
    """An empty store whose clock stands still."""
    return InMemoryStore(lambda: NOW)


async def test_a_whole_log_folds_into_the_trials_that_are_stored(store: InMemoryStore) -> None:
    await Campaign(engine=Engine(store), seed=2).run(3)
    history = await whole_history(store, JOB)
    assert folded(history).job.last_seq == len(history)
    rows = [without_lease(row) for row in await store.trials(JOB)]
    assert comparable(folded(history).trials.values()) == comparable(rows)


async def test_pruning_deletes_nothing_unexported_after_the_clock_stepped_back() -> None:
    moments = {"now": SOON}
    store = InMemoryStore(lambda: moments["now"])
    engine = Engine(store)
    await ask(engine, registration())
    moments["now"] = NOW
    await begin(engine)
    await store.mark_published(range(1, 100))
    logged = await whole_history(store, JOB)
    exported: list[StoredEvent] = []
    await prune_events(store, before=SOON, export=exported.extend)
    left = await whole_history(store, JOB)
    kept = {recorded.seq for recorded in left} | {one.recorded.seq for one in exported}
    assert {recorded.seq for recorded in logged} <= kept
    assert folded(left).job.last_seq == left[-1].seq


async def test_a_pruned_log_keeps_what_was_profiled(store: InMemoryStore) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    trial = await begin(engine, learning_rate=LearningRate(0.1, reference_batch_size=64))
    await ask(engine, report(trial, 1), report(trial, 2, time_s=500.0, energy_j=9e4, is_profiling=True))
    await store.mark_published(range(1, 100))
    [row] = await store.trials(JOB)
    await prune_events(store, before=SOON, export=lambda _page: None)
    assert folded(await whole_history(store, JOB)).trials == {1: without_lease(row)}
    assert row.profiled.epochs == 1.0


async def test_a_log_with_a_gap_is_refused(store: InMemoryStore) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    await begin(engine)
    first, *rest = await whole_history(store, JOB)
    with pytest.raises(LogBroken, match="gap between the events 1 and 3, and no snapshot follows"):
        folded([first, *rest[1:]])
    with pytest.raises(LogBroken, match="begins at event 2, and no snapshot follows"):
        folded(rest)


async def test_a_job_without_a_log_is_empty() -> None:
    assert folded([]).job.last_seq == 0


async def test_a_job_that_nobody_has_deleted_meanwhile_is_not_purged(store: InMemoryStore) -> None:
    await ask(Engine(store), registration())
    store.tables.jobs[JOB] = replace(
        store.tables.jobs[JOB], snapshot=replace(store.tables.jobs[JOB].snapshot, is_deleted=True)
    )
    assert await purge_jobs(store, deleted_before=SOON) == ()


async def test_what_was_recorded_after_the_moment_is_not_pruned(store: InMemoryStore) -> None:
    await ask(Engine(store), registration())
    await store.mark_published([stored.event_id for stored in await store.history()])
    assert (await prune_events(store, before=NOW, export=lambda _: None)).events == 0
    assert (await prune_events(store, before=SOON, export=lambda _: None)).events == 1


async def test_a_reply_of_a_newer_release_is_no_poison(store: InMemoryStore) -> None:
    engine = Engine(store)
    asked = registration()
    await ask(engine, asked)
    store.tables.replies[asked.command_id] = replace(store.tables.replies[asked.command_id], type="from_the_future")
    other = registration("another")
    answer, sound = await engine.execute([asked, other])
    assert isinstance(answer.reply, Problem)
    assert (answer.reply.type, answer.reply.is_retryable, answer.poison) == ("reply_unreadable", True, None)
    assert isinstance(sound.reply, Registered)


@pytest.mark.parametrize(
    ("event_type", "payload"), [("from_the_future", "{}"), ("trial_ended", "{}"), ("job_deleted", "[")]
)
def test_an_event_of_a_newer_release_is_not_guessed_at(event_type: str, payload: str) -> None:
    new = NewEvent(
        job_id=JOB, seq=7, type=event_type, payload=payload, trial_number=1, epoch=None, command_id="c", part=0
    )
    with pytest.raises(StateTooNew, match="event 7 of job"):
        recorded_from(LoggedEvent(new=new, recorded_at=NOW))


def test_only_reports_are_reports() -> None:
    with pytest.raises(StateTooNew, match="stands in a job_deleted event"):
        epoch_report_of("job_deleted", "{}")


async def test_a_pruned_log_keeps_trials_whose_result_may_still_come() -> None:
    seconds = count()
    store = InMemoryStore(lambda: NOW + timedelta(seconds=next(seconds)))
    engine = Engine(store, Rules(lease_s=0.0, resume_window_s=0.0))
    await ask(engine, registration())
    trial = await begin(engine)
    for _ in range(2):  # suspended, then given up
        [lapsed] = await store.lapsed_leases()
        await engine.execute([expiry_of(lapsed)])
    await store.mark_published(range(1, 100))
    await prune_events(store, before=SOON, export=lambda _page: None)
    await ask(engine, finish(trial, Outcome.CONVERGED, is_journalled=True))
    [row] = await store.trials(JOB)
    assert row.late_outcome is Outcome.CONVERGED
    assert folded(await whole_history(store, JOB)).trials == {1: row}
