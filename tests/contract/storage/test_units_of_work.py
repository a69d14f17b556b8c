"""What every store must do beneath the engine: transactions, locks, outbox, leases, retention."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from bso.domain.commands import DeleteJob, RenewLease
from bso.domain.decide import Rules
from bso.domain.events import JobSnapshotted, TrialSuspended
from bso.domain.replies import LeaseExpired, Problem, Registered, TrialBegun
from bso.domain.trial import Outcome, TrialState
from bso.service.answers import Undecided
from bso.service.engine import Engine
from bso.service.errors import JobDamaged
from bso.service.leases import expiry_of
from bso.service.memory import InMemoryStore
from bso.service.ports import Store
from bso.service.readiness import require_schema
from bso.service.records import SchemaStatus, StoredEvent
from bso.service.retention import prune_events, purge_jobs
from bso.service.serialization import read_snapshot
from bso.storage import SqlStore
from tests.contract.storage.conftest import OpenStore
from tests.contract.storage.doubles import HeldCommit, SteppedStore, plain_commit, rule_that_breaks_on
from tests.contract.storage.job_requests import (
    JOB,
    Campaign,
    ask,
    assert_log_equals_tables,
    begin,
    beginning,
    folded,
    registration,
    report,
    request,
    whole_history,
)


async def test_a_resend_in_flight_waits_and_gets_the_same_answer_once(open_another: OpenStore) -> None:
    store = open_another()
    await ask(Engine(store), registration())
    held = HeldCommit()
    rival_store = SteppedStore(open_another(), plain_commit)
    asked = beginning()
    first = asyncio.create_task(Engine(SteppedStore(open_another(), held)).execute([asked]))
    await held.arrived.wait()
    second = asyncio.create_task(Engine(rival_store).execute([asked]))
    await rival_store.was_asked.wait()
    for _ in range(20):  # round trips, in which the second would have decided if nothing held it
        assert (await store.jobs())[0].last_trial_number == 0
    assert not second.done()
    held.let_go.set()
    [[told], [repeated]] = await asyncio.gather(first, second)
    assert (told.is_repeat, repeated.is_repeat) == (False, True)
    assert repeated.reply == told.reply
    assert len(await store.trials(JOB)) == 1
    await assert_log_equals_tables(store)


async def test_registrations_of_a_new_job_wait_for_one_another(open_another: OpenStore) -> None:
    held = HeldCommit()
    rival_store = SteppedStore(open_another(), plain_commit)
    first = asyncio.create_task(Engine(SteppedStore(open_another(), held)).execute([registration()]))
    await held.arrived.wait()
    second = asyncio.create_task(Engine(rival_store).execute([registration()]))
    await rival_store.was_asked.wait()
    held.let_go.set()
    replies = [answer.reply for [answer] in await asyncio.gather(first, second)]
    assert [reply.is_new for reply in replies if isinstance(reply, Registered)] == [True, False]


async def test_answers_and_active_trials_are_recollected_each_once(store: Store) -> None:
    engine = Engine(store)
    await ask(engine, registration(), registration("other"))
    begun = [beginning(), beginning(), beginning(job_id="other")]
    await ask(engine, *begun)
    trials = {(job_id, trial.trial_number): trial for job_id in (JOB, "other") for trial in await store.trials(job_id)}
    async with store.unit_of_work() as uow:
        await uow.lock([JOB, "other"], creating=())
        asked = [*(request.command_id for request in begun), "00000000-0000-4000-8000-000000000001"]
        both = await uow.recollect(asked, active_of=[JOB, "other"])
        one_job = await uow.recollect(asked[:1], active_of=["other"])
        nothing = await uow.recollect([])
    assert both.replies.keys() == {request.command_id for request in begun}
    assert {both.replies[request.command_id].job_id for request in begun} == {JOB, "other"}
    assert both.active == trials
    assert trials.keys() == {(JOB, 1), (JOB, 2), ("other", 1)}
    assert set(one_job.replies) == {begun[0].command_id}
    assert set(one_job.active) == {("other", 1)}
    assert not nothing.replies
    assert not nothing.active
    assert nothing.now >= both.now


async def test_leaving_without_commit_undoes_everything(store: Store) -> None:
    await ask(Engine(store), registration())
    history, trials = await whole_history(store), await store.trials(JOB)

    async def give_up(_uow: object) -> None:
        raise ZeroDivisionError("before the commit")

    broken = Engine(SteppedStore(store, give_up))
    with pytest.raises(ZeroDivisionError):
        await broken.execute([beginning(), registration("another")])
    assert (await whole_history(store), await store.trials(JOB)) == (history, trials)
    assert [job.job_id for job in await store.jobs()] == [JOB]


async def test_a_cancelled_call_undoes_everything_and_leaves_the_store_usable(open_another: OpenStore) -> None:
    store = open_another()
    await ask(Engine(store), registration())
    for _ in range(3):
        held = HeldCommit()
        call = asyncio.create_task(Engine(SteppedStore(store, held)).execute([beginning()]))
        await held.arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert (await begin(Engine(open_another()))).trial_number == 1
    assert (await begin(Engine(store))).trial_number == 2
    await assert_log_equals_tables(store)


async def test_a_poison_command_leaves_its_batch_unharmed(store: Store) -> None:
    poison = beginning()
    engine = Engine(store, rule=rule_that_breaks_on(poison.command_id))
    await ask(engine, registration(), registration("another"))
    before, bad, after, elsewhere = await engine.execute([beginning(), poison, beginning(), beginning("another")])
    assert bad.poison == "ZeroDivisionError: a bug in a rule"
    assert isinstance(bad.reply, Problem)
    numbers = [answer.reply.trial_number for answer in (before, after) if isinstance(answer.reply, TrialBegun)]
    assert numbers == [1, 2]
    assert elsewhere.poison is None
    await assert_log_equals_tables(store)
    [mended] = await ask(Engine(store), poison)
    assert isinstance(mended.reply, TrialBegun)
    assert mended.reply.trial_number == 3


async def test_lapsed_leases_are_found_and_expired_once(open_another: OpenStore) -> None:
    store = open_another()
    brief = Engine(store, Rules(lease_s=0.0, resume_window_s=3600.0))
    await ask(brief, registration(), registration("another"))
    first, _ = await begin(brief), await begin(brief, "another")
    lapsed = await store.lapsed_leases()
    assert [(lease.job_id, lease.trial_number) for lease in lapsed] == [(JOB, 1), ("another", 1)]
    assert await store.lapsed_leases(job_id="another") == lapsed[1:]
    assert await store.lapsed_leases(limit=1) == lapsed[:1]
    assert await store.lapsed_leases(without={JOB}) == lapsed[1:]
    assert await store.lapsed_leases(without={JOB, "another"}) == []
    rivals = [Engine(open_another(), Rules(resume_window_s=3600.0)) for _ in range(2)]
    told = await asyncio.gather(*(rival.execute([expiry_of(lease) for lease in lapsed]) for rival in rivals))
    assert [answer.reply for answers in told for answer in answers] == [LeaseExpired(state=TrialState.SUSPENDED)] * 4
    assert sum(isinstance(one.event, TrialSuspended) for one in await whole_history(store)) == 2
    assert await store.lapsed_leases() == []
    await ask(Engine(store), request(RenewLease(trial_number=1, trial_id=first.trial_id)))
    assert [trial.state for trial in await store.trials(JOB)] == [TrialState.RUNNING]
    await assert_log_equals_tables(store)


async def test_a_trial_unheard_of_for_the_whole_resume_window_ends(store: Store) -> None:
    brief = Engine(store, Rules(lease_s=0.0, resume_window_s=0.0))
    await ask(brief, registration())
    trial = await begin(brief)
    for _ in range(2):
        await ask(brief, *map(expiry_of, await store.lapsed_leases()))
    [row] = await store.trials(JOB)
    assert (row.state, row.outcome, row.lease_expires_at) == (TrialState.ENDED, Outcome.INTERRUPTED, None)
    assert await store.lapsed_leases() == []
    await ask(brief, report(trial, 1, metric=0.99))
    [row] = await store.trials(JOB)
    assert (row.outcome, row.late_outcome) == (Outcome.INTERRUPTED, Outcome.CONVERGED)
    await assert_log_equals_tables(store)


async def test_events_are_unpublished_until_they_are_marked(store: Store) -> None:
    engine = Engine(store)
    [registered] = await ask(engine, registration())
    [begun] = await ask(engine, beginning())
    waiting = (await store.unpublished(older_than_s=0.0)).events
    assert [stored.event_id for stored in waiting] == [event.event_id for event in (*registered.events, *begun.events)]
    assert waiting[0].recorded == registered.events[0].recorded
    assert (await store.unpublished(older_than_s=3600.0)).events == []
    await store.mark_published([event.event_id for event in begun.events])
    await store.mark_published([event.event_id for event in begun.events])
    await store.mark_published([])
    page = await store.unpublished(older_than_s=0.0, limit=1)
    assert (list(page.events), page.next_after) == (list(registered.events), registered.events[0].event_id)
    rest = await store.unpublished(older_than_s=0.0, after=registered.events[0].event_id)
    assert (list(rest.events), rest.unreadable, rest.next_after) == ([], 0, None)
    await store.mark_published([10**9, *(event.event_id for event in registered.events)])
    assert (await store.unpublished(older_than_s=0.0)).events == []


@pytest.mark.parametrize("every", [1, 2, 7])
async def test_just_the_events_that_are_named_are_marked_however_they_lie(store: Store, every: int) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    trial = await begin(engine)
    await ask(engine, *(report(trial, epoch) for epoch in range(1, 71)))
    event_ids = [stored.event_id for stored in await store.history()]
    left = event_ids[5::every] if every > 1 else event_ids[50:]
    await store.mark_published([one for one in reversed(event_ids) if one not in left])
    assert [stored.event_id for stored in (await store.unpublished(older_than_s=0.0)).events] == left


async def test_history_is_read_in_pages(store: Store) -> None:
    engine = Engine(store)
    assert await store.last_event_id() == 0
    for job_id in ("one", "two"):
        await ask(engine, registration(job_id))
        trial = await begin(engine, job_id)
        await ask(engine, *(report(trial, epoch, job_id=job_id) for epoch in range(1, 8)))
    everything = await store.history()
    ids = [stored.event_id for stored in everything]
    assert ids == sorted(ids)
    assert await store.last_event_id() == ids[-1]
    assert await store.last_event_id("one") == [one.event_id for one in everything if one.recorded.job_id == "one"][-1]
    assert await store.last_event_id("nobody") == 0
    last = {job_id: await store.last_event_id(job_id) for job_id in ("one", "two")}
    assert await store.last_event_ids(["two", "nobody", "one"]) == last
    assert await store.last_event_ids(["two"]) == {"two": last["two"]}
    of_two = [stored for stored in everything if stored.recorded.job_id == "two"]
    assert await store.history("two") == of_two
    assert await store.history("two", after=of_two[2].event_id, limit=3) == of_two[3:6]
    assert await store.history("two", after=everything[1].event_id, limit=2) == of_two[:2]
    assert await store.history(after=ids[-3]) == everything[-2:]
    assert await store.history(before=everything[0].recorded.recorded_at) == []
    assert await store.history(before=datetime.now(UTC) + timedelta(hours=1)) == everything
    assert await store.history("nobody") == []


async def test_pruned_history_is_exported_and_replay_starts_at_the_snapshot(store: Store) -> None:
    engine = Engine(store)
    await Campaign(engine=engine, seed=3).run(6)
    open_trial = await begin(engine, recurrence_id="still-open")
    await ask(engine, report(open_trial, 1))
    before_pruning = await whole_history(store, JOB)
    exported: list[StoredEvent] = []
    soon = datetime.now(UTC) + timedelta(hours=1)
    nothing = await prune_events(store, before=soon, export=exported.extend)
    assert (nothing.jobs, nothing.events) == (0, 0)  # nobody has published them yet
    await _publish_everything(store)
    exported.clear()
    pruned = await prune_events(store, before=soon, export=exported.extend)
    # Some metrics are NaN, which equals nothing.
    assert [repr(stored.recorded) for stored in exported] == [repr(recorded) for recorded in before_pruning]
    assert (pruned.jobs, pruned.events) == (1, len(before_pruning))
    [snapshot] = await whole_history(store, JOB)
    assert isinstance(snapshot.event, JobSnapshotted)
    await ask(engine, report(open_trial, 2), report(open_trial, 3, metric=1.0))
    told = folded(await whole_history(store, JOB))
    stored = await store.job(JOB)
    assert stored is not None
    assert read_snapshot(stored).versions == told.job.versions
    assert read_snapshot(stored).last_seq == told.job.last_seq
    assert told.trials[open_trial.trial_number].outcome is Outcome.CONVERGED


async def test_pruning_twice_prunes_nothing_more(store: Store) -> None:
    await ask(Engine(store), registration())
    await _publish_everything(store)
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert (await prune_events(store, before=soon, export=lambda _: None)).jobs == 1
    await _publish_everything(store)
    assert (await prune_events(store, before=soon, export=lambda _: None)).jobs == 0
    assert len(await whole_history(store, JOB)) == 1


async def test_nobody_can_keep_a_job_from_being_pruned_by_a_command_under_the_id_of_the_snapshot(store: Store) -> None:
    await ask(Engine(store), registration())
    await _publish_everything(store)
    await prune_events(store, before=datetime.now(UTC) + timedelta(hours=1), export=lambda _: None)
    [snapshot] = await whole_history(store, JOB)
    assert uuid.UUID(snapshot.command_id).version == 4, "drawn at random"


async def test_only_events_of_before_that_moment_are_forgotten(store: Store) -> None:
    engine = Engine(store)
    await Campaign(engine=engine, seed=3).run(2)
    await _publish_everything(store)
    log = await whole_history(store, JOB)
    moment = log[len(log) // 2].recorded_at
    old = [recorded for recorded in log if recorded.recorded_at < moment]
    async with store.unit_of_work() as uow:
        await uow.lock([JOB], creating=())
        assert await uow.forget_events(JOB, up_to_seq=log[-1].seq, before=moment) == len(old)
        await uow.commit()
    assert await whole_history(store, JOB) == log[len(old) :]


async def test_only_deleted_jobs_are_purged(store: Store) -> None:
    engine = Engine(store)
    for job_id in ("living", "dead"):
        await ask(engine, registration(job_id))
        await begin(engine, job_id)
    await ask(engine, request(DeleteJob(), job_id="dead"))
    assert await purge_jobs(store, deleted_before=datetime.now(UTC) - timedelta(hours=1)) == ()
    assert await purge_jobs(store, deleted_before=datetime.now(UTC) + timedelta(hours=1)) == ("dead",)
    assert [job.job_id for job in await store.jobs()] == ["living"]
    assert await store.trials("dead") == []
    assert {recorded.job_id for recorded in await whole_history(store)} == {"living"}
    await ask(engine, registration("dead"))
    assert (await begin(engine, "dead")).trial_number == 1


async def test_a_store_that_is_up_to_date_is_ready(store: Store) -> None:
    await store.ping()
    assert (await require_schema(store)).status is SchemaStatus.CURRENT


async def _publish_everything(store: Store) -> None:
    await store.mark_published(
        [stored.event_id for stored in (await store.unpublished(older_than_s=0.0, limit=10_000)).events]
    )


async def test_a_job_that_has_a_log_and_no_row_is_an_orphan(open_another: OpenStore) -> None:
    store = open_another()
    await ask(Engine(store), registration())
    async with store.unit_of_work() as uow:
        assert not await uow.orphans([JOB, "unknown"])
    await _lose_the_row(store)
    async with store.unit_of_work() as uow:
        assert set(await uow.orphans([JOB, "unknown"])) == {JOB}
    [undecided] = await Engine(store).attempt([beginning()])
    assert isinstance(undecided, Undecided)
    assert isinstance(undecided.cause, JobDamaged)


async def _lose_the_row(store: Store) -> None:
    if isinstance(store, InMemoryStore):
        del store.tables.jobs[JOB]
        return
    assert isinstance(store, SqlStore)
    async with store.engine.begin() as connection:
        await connection.execute(text(f"DELETE FROM job WHERE job_id = '{JOB}'"))
