"""What the engine does when its store misbehaves."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bso.domain.commands import Command
from bso.domain.decide import Context, Decision, Facts, Rules, decide
from bso.domain.errors import Misconfigured, Retryable
from bso.domain.identifiers import trial_id_for
from bso.domain.job import Job
from bso.domain.replies import Problem, Registered, TrialBegun
from bso.schema.errors import StateTooNew
from bso.service.answers import Answer, Undecided
from bso.service.batch import Batches
from bso.service.engine import Engine, Patience
from bso.service.errors import (
    Conflict,
    DecidingTimedOut,
    JobDamaged,
    OutOfTime,
    SchemaMissing,
    StoreLost,
    StoreRefused,
    StoreTimedOut,
    StoreUnavailable,
    Unstorable,
)
from bso.service.memory import InMemoryStore
from bso.service.ports import UnitOfWork
from bso.service.records import ChangeSet, JobChange, StoredJob
from bso.service.serialization import KnownJobs, read_snapshot
from tests.contract.storage.doubles import HeldCommit, Step, SteppedStore, rule_that_breaks_on, rule_that_takes
from tests.contract.storage.job_requests import JOB, ask, begin, beginning, registration, report, whole_history

IMPATIENT = Patience(attempts=4, longest_pause_s=0.001)


@pytest.fixture
def store() -> InMemoryStore:
    """An empty store in memory."""
    return InMemoryStore(lambda: datetime.now(UTC))


async def test_no_requests_need_no_store() -> None:
    assert await Engine(SteppedStore(None, _never)).execute([]) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [Conflict, StoreLost])
async def test_what_got_in_the_way_is_tried_again(store: InMemoryStore, error: type[Exception]) -> None:
    step = failing(error("in the way"), times=3)
    [answer] = await Engine(SteppedStore(store, step), patience=IMPATIENT).execute([registration()])
    assert isinstance(answer.reply, Registered)
    assert not answer.is_repeat
    assert len(await whole_history(store)) == 1


async def test_a_commit_with_unknown_outcome_is_asked_for_by_command_id(store: InMemoryStore) -> None:
    await ask(Engine(store), registration())
    lost = failing(StoreLost("gone in the middle of the commit"), times=1, after_commit=True)
    [answer] = await Engine(SteppedStore(store, lost), patience=IMPATIENT).execute([beginning()])
    assert isinstance(answer.reply, TrialBegun)
    assert (answer.reply.trial_number, answer.is_repeat) == (1, True)
    assert len(await store.trials(JOB)) == 1


@pytest.mark.parametrize("error", [Conflict, StoreLost])
async def test_patience_ends(store: InMemoryStore, error: type[Exception]) -> None:
    step = failing(error("for ever"), times=10**9)
    with pytest.raises(error, match="for ever"):
        await Engine(SteppedStore(store, step), patience=IMPATIENT).execute([registration()])
    assert await store.jobs() == []


@pytest.mark.parametrize("error", [StoreUnavailable("disk full"), SchemaMissing("no tables"), StoreRefused("what?")])
async def test_what_lies_in_the_infrastructure_is_raised_and_no_poison(store: InMemoryStore, error: Exception) -> None:
    broken = Engine(SteppedStore(store, failing(error, times=10**9)), patience=IMPATIENT)
    with pytest.raises(type(error)) as raised:
        await broken.execute([registration(), registration("another")])
    assert isinstance(raised.value, Retryable | Misconfigured)
    assert await store.jobs() == []


async def test_a_store_that_never_answers_is_given_up(store: InMemoryStore) -> None:
    frozen = Engine(SteppedStore(store, HeldCommit()), patience=replace(IMPATIENT, attempt_s=0.2))
    with pytest.raises(StoreUnavailable, match=r"did not answer within 0.2 s"):
        await frozen.execute([registration()])
    await ask(Engine(store), registration())


async def test_a_transaction_whose_decisions_take_too_long_does_not_blame_the_store(store: InMemoryStore) -> None:
    await ask(Engine(store), registration())
    busy = Engine(store, rule=rule_that_takes(0.15, job_id=JOB), patience=replace(IMPATIENT, attempt_s=0.2))
    with pytest.raises(DecidingTimedOut, match=r"did not end within 0.2 s, as decisions took 0.\d s: too much CPU"):
        await busy.execute([beginning(), beginning()])


async def test_a_job_whose_decision_took_long_is_decided_beside_the_event_loop_from_then_on(
    store: InMemoryStore,
) -> None:
    """Whatever its number of batch sizes: a policy of somebody else's may take its time."""
    threads: list[int] = []
    takes_long = rule_that_takes(0.1, job_id=JOB)

    def noting(job: Job, command: Command, facts: Facts, context: Context) -> Decision:
        threads.append(threading.get_ident())
        return takes_long(job, command, facts, context)

    engine = Engine(store, rule=noting)
    await ask(engine, registration(), beginning(), beginning(), registration("another"))
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [True, False, False, True]


async def test_a_process_that_was_stopped_while_it_decided_does_not_blame_its_decisions(store: InMemoryStore) -> None:
    await ask(Engine(store), registration())

    def stopped(job: Job, command: Command, facts: Facts, context: Context) -> Decision:
        threading.Event().wait(0.3)  # uses no CPU
        return decide(job, command, facts, context)

    held = Engine(SteppedStore(store, HeldCommit()), rule=stopped, patience=replace(IMPATIENT, attempt_s=0.2))
    with pytest.raises(StoreTimedOut, match=r"the store did not answer within 0\.2 s"):
        await held.execute([beginning()])


async def test_a_command_that_cannot_be_stored_is_found_among_its_batch(store: InMemoryStore) -> None:
    await ask(Engine(store), registration())
    engine = Engine(PickyStore(store, "too-long", Unstorable("data too long")), patience=IMPATIENT)
    first, poison, last = await engine.execute([beginning(), registration("too-long"), beginning()])
    assert poison.poison == "data too long"
    assert isinstance(poison.reply, Problem)
    assert [answer.poison for answer in (first, last)] == [None, None]
    assert [trial.trial_number for trial in await store.trials(JOB)] == [1, 2]


async def test_a_refusal_of_unknown_cause_is_narrowed_down_to_one_command(store: InMemoryStore) -> None:
    engine = Engine(PickyStore(store, "too-big", StoreRefused("1153: packet too large")), patience=IMPATIENT)
    with pytest.raises(StoreRefused, match="1153"):
        await engine.execute([registration("before"), registration("too-big"), registration("after")])
    assert [job.job_id for job in await store.jobs()] == ["before"]


async def test_a_bug_in_the_first_command_of_a_new_job_leaves_the_others(store: InMemoryStore) -> None:
    bad, good = registration(), registration()
    engine = Engine(store, rule=rule_that_breaks_on(bad.command_id))
    poison, registered = await engine.execute([bad, good])
    assert poison.poison is not None
    assert isinstance(registered.reply, Registered)
    assert registered.reply.is_new


async def test_a_damaged_state_leaves_the_commands_of_its_own_job_undecided(store: InMemoryStore) -> None:
    engine = Engine(store)
    await ask(engine, registration(), registration("another"))
    await damage(store, JOB, '{"state_major": 1, "versions": "gone"}')
    bad, good = await engine.attempt([beginning(), beginning("another")])
    assert isinstance(bad, Undecided)
    assert isinstance(bad.cause, JobDamaged)
    assert JOB in str(bad.cause)
    assert isinstance(good, Answer)
    assert isinstance(good.reply, TrialBegun)
    await damage(store, JOB, "[")
    with pytest.raises(JobDamaged, match="not JSON"):
        await engine.execute([beginning()])


async def test_a_state_of_a_newer_release_is_no_poison(store: InMemoryStore) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    await damage(store, JOB, '{"state_major": 99}')
    with pytest.raises(Retryable, match="upgrade"):
        await engine.execute([beginning()])


async def test_snapshots_are_remembered_by_their_exact_text(store: InMemoryStore) -> None:
    engine = Engine(store)
    await ask(engine, registration(), registration("another"))
    jobs = KnownJobs(capacity=1)

    def read(stored: StoredJob) -> Job:
        return jobs.read(stored, jobs.of([stored.job_id]).get(stored.job_id))

    first, other = await store.job(JOB), await store.job("another")
    assert first is not None
    assert other is not None
    assert read(first).versions is read(first).versions
    assert read(other) == read_snapshot(other)
    await begin(engine)
    changed = await store.job(JOB)
    assert changed is not None
    assert read(changed) == read_snapshot(changed)
    assert read(changed).last_trial_number == 1


async def test_a_batch_of_more_jobs_than_are_kept_is_decided(store: InMemoryStore) -> None:
    names = [f"job-{number}" for number in range(5)]
    await ask(Engine(store), *map(registration, names))
    batches = Batches(rules=Rules(), decide=decide, known_jobs=KnownJobs(capacity=2))
    for some in (names[3:], names[1:], names, names):
        async with store.unit_of_work() as uow:
            answers = await batches.run(uow, [beginning(name) for name in some], waits=False)
        assert all(isinstance(answer, Answer) and isinstance(answer.reply, TrialBegun) for answer in answers)


def test_a_job_that_an_earlier_batch_keeps_late_is_not_taken_back() -> None:
    jobs = KnownJobs()
    for revision in (7, 6):
        jobs.keep(Job(job_id=JOB, last_seq=revision), text="{}", revision=revision, log_epoch=None)
    assert jobs.of([JOB])[JOB].revision == 7


async def damage(store: InMemoryStore, job_id: str, state: str) -> None:
    """Overwrite a job's stored state."""
    async with store.unit_of_work() as uow:
        stored = (await uow.lock([job_id], creating=()))[job_id]
        snapshot = replace(store.tables.jobs[job_id].snapshot, state=state)
        revision = stored.revision + 1
        change = JobChange(job_id=job_id, last_seq=stored.last_seq, revision=revision, snapshot=snapshot)
        await uow.commit(ChangeSet(now=datetime.now(UTC), jobs=(change,)))


async def test_an_earlier_report_that_only_a_newer_release_can_read_is_waited_for(store: InMemoryStore) -> None:
    engine = Engine(store)
    await ask(engine, registration())
    trial = await begin(engine)
    await ask(engine, report(trial, 1.0), report(trial, 2.0))
    for event_id, event in store.tables.events.items():
        if event.new.epoch == 1.0:
            newer = replace(event.new, payload='{"of": "a newer release"}')
            store.tables.events[event_id] = replace(event, new=newer)
    with pytest.raises(StateTooNew):
        await engine.execute([report(trial, 1.0)])


def failing(error: Exception, *, times: int, after_commit: bool = False) -> Step:
    """A commit that fails some times, having done its work before or not."""
    left = times

    async def step(uow: UnitOfWork) -> None:
        nonlocal left
        if not left:
            await uow.commit()
            return
        left -= 1
        if after_commit:
            await uow.commit()
        raise error

    return step


async def _never(_uow: UnitOfWork) -> None:
    await asyncio.Event().wait()


class PickyStore:
    """A store that refuses to save anything of one job."""

    def __init__(self, store: InMemoryStore, job_id: str, error: Exception) -> None:
        self._store = store
        self._job_id = job_id
        self._error = error

    @asynccontextmanager
    async def unit_of_work(self) -> AsyncIterator[UnitOfWork]:
        """Begin a transaction."""
        async with self._store.unit_of_work() as uow:
            commit = uow.commit

            async def picky(changes: ChangeSet | None = None, *, above: int = 0) -> Mapping[tuple[str, int], int]:
                if changes is not None and any(change.job_id == self._job_id for change in changes.jobs):
                    raise self._error
                return await commit(changes, above=above)

            uow.commit = picky  # type: ignore[method-assign]  # of this one alone
            yield uow


async def test_a_transaction_decides_for_a_short_while_and_leaves_the_rest_for_the_next(store: InMemoryStore) -> None:
    engine = Engine(store, rule=rule_that_takes(0.01, job_id=JOB), patience=Patience(deciding_s=0.05))
    await ask(engine, registration())
    asked = [beginning() for _ in range(20)]
    left = list(asked)
    transactions = 0
    while left:
        found = await engine.attempt(left)
        decided = [isinstance(answer, Answer) for answer in found]
        assert decided == sorted(decided, reverse=True), "those that came first"
        assert 1 <= sum(decided) <= 6
        causes = {type(answer.cause) for answer in found if isinstance(answer, Undecided)}
        assert causes <= {OutOfTime}
        left = left[sum(decided) :]
        transactions += 1
    assert transactions >= 4
    trials = await store.trials(JOB)
    assert [trial.trial_id for trial in trials] == [trial_id_for(request.command_id) for request in asked]
