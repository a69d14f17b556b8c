"""What a job inherits from another one: read beside the batch, as the log records it, and never worth a training."""

from dataclasses import replace

import pytest

from bso.domain.commands import DeleteJob, RegisterJob, Request
from bso.domain.replies import Problem, Registered, TrialBegun
from bso.service.answers import Answer, Undecided
from bso.service.engine import Engine
from bso.service.ports import Store
from bso.service.records import ChangeSet, JobChange
from bso.service.serialization import read_snapshot, snapshot_of
from tests.contract.storage.job_requests import (
    SPEC,
    ask,
    assert_log_equals_tables,
    begin,
    beginning,
    registration,
    report,
    request,
)
from tests.contract.storage.siblings import BEST, EPOCHS, KNOWN, NEW, inherited, like, trained


async def registered(engine: Engine, asked: Request) -> Registered:
    """Register a job."""
    [answer] = await ask(engine, asked)
    assert isinstance(answer.reply, Registered), answer.reply
    return answer.reply


async def overwrite(store: Store, job_id: str, state: str) -> None:
    """Put another text in the place of a job's stored state."""
    async with store.unit_of_work() as uow:
        stored = (await uow.lock([job_id], creating=()))[job_id]
        memory = await uow.recollect([])
        snapshot = replace(snapshot_of(read_snapshot(stored)), state=state)
        change = JobChange(job_id=job_id, last_seq=stored.last_seq, revision=stored.revision + 1, snapshot=snapshot)
        await uow.commit(ChangeSet(now=memory.now, jobs=(change,)))


async def test_a_job_like_another_begins_with_its_best_batch_size(store: Store) -> None:
    engine = Engine(store)
    await trained(engine)
    reply = await registered(engine, like())
    assert (reply.is_new, reply.warnings) == (True, ())
    trial = await begin(engine, NEW)
    assert trial.batch_size == BEST
    assert trial.reason == f"no run of this version has converged yet; by inherited knowledge {BEST} is best"
    assert (await begin(engine, KNOWN)).trial_number == len(await store.trials(KNOWN)), "its sibling goes on as before"
    for job_id in (KNOWN, NEW):
        await assert_log_equals_tables(store, job_id)
    assert await inherited(store) == [True]


async def test_without_like_nothing_is_inherited_by_guess(store: Store) -> None:
    engine = Engine(store)
    await trained(engine)
    assert (await registered(engine, registration(NEW))).warnings == ()
    assert (await begin(engine, NEW)).batch_size == SPEC["default_batch_size"]
    assert await inherited(store) == [False]


async def test_a_new_version_inherits_unless_it_is_not_to(store: Store) -> None:
    engine = Engine(store)
    await trained(engine)
    first = await registered(engine, registration(KNOWN, version="v2"))
    assert "starts with the knowledge of version 1" in " ".join(first.warnings)
    second = RegisterJob(spec={**SPEC, "version": "v3"}, inherit=False)
    assert "with no knowledge" in " ".join((await registered(engine, request(second, job_id=KNOWN))).warnings)
    assert await inherited(store, KNOWN) == [False, True, False]
    await assert_log_equals_tables(store, KNOWN)


async def test_a_job_of_the_same_batch_is_inherited_from_as_the_commands_before_have_left_it(store: Store) -> None:
    engine = Engine(store)
    first, second = like(), like("later")
    await ask(engine, registration(KNOWN))
    trial = await begin(engine, KNOWN)
    last = EPOCHS[trial.batch_size]
    reports = [report(trial, epoch, job_id=KNOWN, metric=0.9 if epoch == last else 0.5) for epoch in range(1, last + 1)]
    before, *_, after = await ask(engine, first, *reports, second)
    assert isinstance(before.reply, Registered)
    assert before.reply.warnings == (f"nothing is inherited from job {KNOWN}: it has no run yet",)
    assert isinstance(after.reply, Registered)
    assert after.reply.warnings == ()
    assert (await inherited(store), await inherited(store, "later")) == ([False], [True])


async def test_a_job_that_the_same_batch_registers_is_there(store: Store) -> None:
    engine = Engine(store)
    early, _, late = await ask(engine, like("early"), registration(KNOWN), like())
    words = [answer.reply.warnings for answer in (early, late) if isinstance(answer.reply, Registered)]
    assert words == [
        (f"nothing is inherited from job {KNOWN}: it is not registered, or this login cannot read it",),
        (f"nothing is inherited from job {KNOWN}: it has no run yet",),
    ]


async def test_a_job_that_does_not_exist_is_no_reason_to_refuse_a_training(store: Store) -> None:
    engine = Engine(store)
    words = f"nothing is inherited from job {KNOWN}: it is not registered, or this login cannot read it"
    assert (await registered(engine, like())).warnings == (words,)
    assert (await begin(engine, NEW)).batch_size == SPEC["default_batch_size"]
    assert [job.job_id for job in await store.jobs()] == [NEW], "to be named makes no job"
    await trained(engine)
    await ask(engine, request(DeleteJob(), job_id=KNOWN))
    assert (await registered(engine, like("later"))).warnings == (words,)
    [version] = (await registered(engine, like(version="v2"))).warnings[1:]
    assert version == words
    assert await inherited(store) == [False, False]


@pytest.mark.parametrize("state", ["[", '{"state_major": 1, "versions": "gone"}', '{"state_major": 99}'])
async def test_a_job_that_cannot_be_read_is_no_reason_to_refuse_a_training(store: Store, state: str) -> None:
    engine = Engine(store)
    await trained(engine, recurrences=1)
    await overwrite(store, KNOWN, state)
    assert "nothing is inherited" in " ".join((await registered(engine, like())).warnings)
    assert isinstance(await begin(engine, NEW), TrialBegun)
    await assert_log_equals_tables(store, NEW)


async def test_a_damaged_job_of_the_same_batch_leaves_only_its_own_commands_undecided(store: Store) -> None:
    engine = Engine(store)
    await trained(engine, recurrences=1)
    await overwrite(store, KNOWN, "[")
    bad, good = await engine.attempt([beginning(KNOWN), like()])
    assert isinstance(bad, Undecided)
    assert isinstance(good, Answer)
    assert good.poison is None
    assert isinstance(good.reply, Registered)
    assert "nothing is inherited" in " ".join(good.reply.warnings)


@pytest.mark.parametrize("name", ["", "with space", "x" * 121, "naïve", "🚀", "'; DROP TABLE job; --", "a\x00b"])
async def test_what_names_no_job_is_refused_and_its_batch_is_not(store: Store, name: str) -> None:
    refused, accepted = await ask(Engine(store), like(name=name), registration())
    assert isinstance(refused.reply, Problem)
    assert (refused.reply.type, set(refused.reply.fields)) == ("invalid_registration", {"like"})
    assert isinstance(accepted.reply, Registered)
    assert await store.job(NEW) is None


async def test_a_registration_sent_again_gets_its_answer_whatever_has_become_of_the_other_job(store: Store) -> None:
    engine = Engine(store)
    asked = like()
    first = await registered(engine, asked)
    await trained(engine)
    [again] = await ask(engine, asked)
    assert (again.is_repeat, again.reply) == (True, first)
    assert await inherited(store) == [False]


async def test_jobs_are_read_as_they_were_last_committed(store: Store) -> None:
    engine = Engine(store)
    await ask(engine, registration(KNOWN), registration(NEW))
    async with store.unit_of_work() as uow:
        await uow.lock(["placeholder"], creating=["placeholder"])
        found = await uow.jobs([KNOWN, NEW, "placeholder", "nobody"])
        one = await uow.jobs([NEW])
    assert found == {job_id: await store.job(job_id) for job_id in (KNOWN, NEW)}
    assert list(one) == [NEW]
