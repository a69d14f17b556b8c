"""Batches that are decided without reading: one request, and nothing recorded where the store is not as it was."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from bso.domain.commands import RenewLease, Request
from bso.domain.decide import Decision, decide
from bso.domain.events import EpochReported
from bso.domain.policies import PolicyMissing
from bso.domain.replies import EpochJudged, Problem, TrialBegun
from bso.domain.trial import Outcome
from bso.service import optimistic
from bso.service.answers import Answer, Undecided
from bso.service.engine import Engine, Patience
from bso.service.errors import JobHeld, LogOutdated, NotAsExpected, StoreTimedOut
from bso.service.log_epochs import LogWatch
from bso.service.records import ChangeSet, Expected
from bso.storage import SqlStore
from bso_migrations import upgrade
from tests.contract.storage.doubles import rule_that_breaks_on
from tests.contract.storage.job_requests import (
    ask,
    assert_log_equals_tables,
    beginning,
    finish,
    registration,
    report,
    request,
    whole_history,
)
from tests.integration.storage.conftest import OpenAt, read_of
from tests.servers import TcpProxy
from tools.private_servers import MariaDB

JOBS = [f"job-{number}" for number in range(4)]
READS = 6
"""So many batches of one engine after another read, before it takes for granted that nobody else decides."""
MOST_READS = 70
"""So many after many that were decided in vain."""
Trials = dict[str, TrialBegun]


@pytest.fixture(autouse=True)
def lasting_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, the clock is not read again meanwhile."""
    monkeypatch.setattr(optimistic, "CLOCK_LASTS_S", 60.0)


@pytest.fixture
async def url(mysql_url: str) -> str:
    """A database with tables; other kinds are read before each decision."""
    await upgrade(mysql_url)
    return mysql_url


class Counting:
    """A store, as an engine records in it what it decided without reading: which batches, and what came of them."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.recorded = 0
        self.refused = 0
        self.before: Callable[[], Awaitable[object]] | None = None
        """What happens between deciding and recording, once."""
        self.off = timedelta()
        """How far the clock is off."""

    async def commit_if(self, expected: Expected, changes: ChangeSet, *, above: int) -> dict[tuple[str, int], int]:
        """Record, after what is to happen before."""
        before, self.before = self.before, None
        if before is not None:
            await before()
        try:
            found = await self.store.commit_if(replace(expected, now=expected.now + self.off), changes, above=above)
        except NotAsExpected:
            self.refused += 1
            raise
        self.recorded += 1
        return dict(found)


class Trained:
    """An engine that has decided on jobs alone for a while, and a running trial of each job."""

    def __init__(self, store: SqlStore, *, attempt_s: float = 20.0, **options: Any) -> None:
        self.store = store
        self.counting = Counting(store)
        patience = Patience(attempt_s=attempt_s, deciding_s=attempt_s)  # a collection of garbage counts as deciding
        self.engine = Engine(store, patience=patience, optimistic=self.counting, **options)
        self.trials: Trials = {}
        self.epoch = 0

    async def begin(self) -> "Trained":
        """Register the jobs, begin their trials, and report until nothing is read any more."""
        await ask(self.engine, *(registration(job_id, early_stopping=False, max_epochs=10**6) for job_id in JOBS))
        for answer in await ask(self.engine, *map(beginning, JOBS)):
            assert isinstance(answer.reply, TrialBegun)
            self.trials[answer.request.job_id] = answer.reply
        assert await self.report_until_unread() < READS
        return self

    async def report_until_unread(self) -> int:
        """Report until nothing is read any more; how many batches read before."""
        recorded = self.counting.recorded
        for reads in range(MOST_READS):
            await self.report_all()
            if self.counting.recorded > recorded:
                return reads
        raise AssertionError("an engine that decides alone reads every time")

    def reports(self, jobs: Sequence[str] = JOBS) -> list[Request]:
        """The next report of each job."""
        self.epoch += 1
        return [report(self.trials[job_id], self.epoch, job_id=job_id) for job_id in jobs]

    async def report_all(self) -> list[Answer]:
        """Have the next report of each job judged."""
        return await self.judged(self.reports())

    async def judged(self, requests: Sequence[Request]) -> list[Answer]:
        """Have these reports judged, each newly recorded."""
        answers = await self.engine.attempt(requests)
        assert all(isinstance(one, Answer) and one.events for one in answers), answers
        return [one for one in answers if isinstance(one, Answer)]

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """What is decided meanwhile without reading is refused once, by the store."""
        refused = self.counting.refused
        yield
        assert self.counting.refused == refused + 1


async def watched(store: SqlStore) -> tuple[LogWatch, Trained]:
    """The same with a watch over the log, which has looked."""
    watch = LogWatch(store.log_epochs)
    await watch.look()
    return watch, await Trained(store, watch=watch).begin()


async def check_stored(store: SqlStore, *, reports: int) -> None:
    """Log and tables of all jobs agree, and the logs hold so many reports."""
    for job_id in JOBS:
        await assert_log_equals_tables(store, job_id)
    assert sum(isinstance(one.event, EpochReported) for one in await whole_history(store)) == reports


async def test_a_batch_of_reports_is_one_request(
    url: str, open_at: OpenAt, tcp_proxy: Callable[[str], TcpProxy]
) -> None:
    proxy = tcp_proxy(url)
    trained = await Trained(open_at(proxy.url)).begin()
    for jobs in (JOBS, JOBS[:1]):
        before = proxy.requests
        await trained.judged(trained.reports(jobs))
        assert proxy.requests - before == 1


async def test_replies_and_rows_are_those_of_an_engine_that_reads(
    url: str, open_at: OpenAt, mariadb_server: MariaDB
) -> None:
    """The same commands under the same ids, of trainings that report, end, diverge and report late."""
    other_url = mariadb_server.create_database()
    await upgrade(other_url)
    one, other = open_at(url), open_at(other_url)
    counting = Counting(one)
    engines = (Engine(one, optimistic=counting), Engine(other))
    commands = [registration(job_id, max_epochs=12) for job_id in JOBS]
    for engine in engines:
        await ask(engine, *commands)
    for number in range(12):
        begins = [beginning(job_id, recurrence_id=f"night-{number}") for job_id in JOBS]
        begun = [await ask(engine, *begins) for engine in engines]
        assert [one.reply for one in begun[0]] == [one.reply for one in begun[1]]
        trials = [one.reply for one in begun[0]]
        for epoch in range(1, 14):
            batch = []
            for place, (job_id, trial) in enumerate(zip(JOBS, trials, strict=True)):
                assert isinstance(trial, TrialBegun)
                metric = float("nan") if (number, place) == (3, 1) else 0.08 * epoch * (1 + place / 10)
                batch.append(report(trial, epoch, job_id=job_id, metric=metric))
                if (epoch, place) == (3, number % 5):
                    batch.append(finish(trial, Outcome.INTERRUPTED, "a node went down", job_id=job_id))
            answers = [await engine.attempt(batch) for engine in engines]
            replies = [[answer.reply for answer in found if isinstance(answer, Answer)] for found in answers]
            assert len(replies[0]) == len(batch)
            assert repr(replies[0]) == repr(replies[1]), (number, epoch)
    assert counting.recorded >= 10
    for job_id in JOBS:
        await assert_log_equals_tables(one, job_id)
        stored, by_other = await one.job(job_id), await other.job(job_id)
        assert stored is not None
        assert by_other is not None
        assert (stored.last_seq, stored.state) == (by_other.last_seq, by_other.state)


async def test_what_another_process_decides_meanwhile_counts(url: str, open_at: OpenAt) -> None:
    trained = await Trained(open_at(url)).begin()
    rival = Engine(open_at(url))
    theirs = trained.reports(JOBS[2:3])

    async def decide_first() -> None:
        await ask(rival, *theirs)

    trained.counting.before = decide_first
    with trained.refusing():
        await trained.report_all()
    recorded = trained.counting.recorded
    await trained.report_all()
    assert trained.counting.recorded == recorded, "after that it reads"
    await check_stored(trained.store, reports=trained.epoch * len(JOBS) - (len(JOBS) - 1))


async def renewed(engine: Engine, trained: Trained, job_id: str) -> None:
    """Renew the lease of a job's trial: that leaves no event."""
    trial = trained.trials[job_id]
    [answer] = await engine.attempt(
        [request(RenewLease(trial_number=trial.trial_number, trial_id=trial.trial_id), job_id=job_id)]
    )
    assert isinstance(answer, Answer)
    assert not isinstance(answer.reply, Problem)


@pytest.mark.parametrize("jobs", [JOBS, JOBS[2:3]])
async def test_changes_without_an_event_count(url: str, open_at: OpenAt, jobs: Sequence[str]) -> None:
    """The log does not show them; the revision does."""
    trained = await Trained(open_at(url)).begin()
    rival = Engine(open_at(url))

    async def renew() -> None:
        await renewed(rival, trained, JOBS[2])

    async def raise_revision() -> None:
        async with trained.store.engine.begin() as connection:
            await connection.execute(text(f"UPDATE job SET revision = revision + 1 WHERE job_id = '{JOBS[2]}'"))

    for change in (renew, raise_revision):
        trained.counting.before = change
        with trained.refusing():
            await trained.judged(trained.reports(jobs))
        await trained.report_until_unread()
    for job_id in JOBS:
        await assert_log_equals_tables(trained.store, job_id)


async def test_jobs_that_were_kept_in_another_epoch_are_read(url: str, open_at: OpenAt) -> None:
    store = open_at(url)
    watch, trained = await watched(store)
    recorded = trained.counting.recorded
    await store.log_epochs.begin()
    assert await watch.look()
    await trained.report_all()
    assert (trained.counting.recorded, trained.counting.refused) == (recorded, 0)
    await check_stored(store, reports=trained.epoch * len(JOBS))


async def test_only_the_changed_jobs_of_a_refused_batch_are_read_again(url: str, open_at: OpenAt) -> None:
    trained = await Trained(open_at(url)).begin()
    rival = Engine(open_at(url))

    async def renew() -> None:
        await renewed(rival, trained, JOBS[2])

    trained.counting.before = renew
    with read_of() as found, trained.refusing():
        await trained.report_all()
    assert {getattr(one, "job_id", None) or one[0] for one in found} == {JOBS[2]}, "by either"


async def test_attempts_at_a_job_that_somebody_holds_do_not_show_that_nobody_else_decides(
    url: str, open_at: OpenAt
) -> None:
    trained = await Trained(open_at(url)).begin()
    counting = Counting(open_at(url))
    newcomer = Engine(counting.store, optimistic=counting)
    async with trained.store.unit_of_work() as uow:
        await uow.lock(JOBS[:1], creating=())
        for _ in range(READS):
            [held] = await newcomer.attempt(trained.reports(JOBS[:1]))
            assert isinstance(held, Undecided)
    for _ in range(2):
        [answer] = await newcomer.attempt(trained.reports(JOBS[:1]))
        assert isinstance(answer, Answer)
    assert counting.recorded == counting.refused == 0


async def test_two_processes_that_share_jobs_read(url: str, open_at: OpenAt) -> None:
    trained = await Trained(open_at(url)).begin()
    other = Engine(open_at(url), optimistic=(counting := Counting(open_at(url))))
    before = trained.counting.recorded
    for _ in range(20):
        await trained.report_all()
        answers = await other.attempt(trained.reports())
        assert all(isinstance(one, Answer) and one.events for one in answers)
    assert trained.counting.recorded <= before + 1, "the first one"
    assert trained.counting.refused <= 1
    assert (counting.recorded, counting.refused) == (0, 0)
    await check_stored(trained.store, reports=trained.epoch * len(JOBS))


async def test_a_command_that_was_decided_before_gets_its_reply_again(url: str, open_at: OpenAt) -> None:
    trained = await Trained(open_at(url)).begin()
    sent = trained.reports()
    first = await trained.judged(sent)
    # What it says does not show it: the epoch is another one.
    again = replace(report(trained.trials[JOBS[0]], 10**5, job_id=JOBS[0]), command_id=sent[0].command_id)
    with trained.refusing():
        known, new = await trained.engine.attempt([again, *trained.reports(JOBS[1:2])])
    assert isinstance(known, Answer)
    assert isinstance(known.reply, Problem)
    assert known.reply.type == "command_id_taken"
    assert isinstance(new, Answer)
    assert new.events
    repeated = await trained.engine.attempt(sent)
    assert [one.reply for one in repeated if isinstance(one, Answer)] == [one.reply for one in first]
    assert not any(one.events for one in repeated if isinstance(one, Answer))
    await check_stored(trained.store, reports=(trained.epoch - 1) * len(JOBS) + 1)


async def test_the_same_command_twice_in_a_batch_is_decided_once(url: str, open_at: OpenAt) -> None:
    trained = await Trained(open_at(url)).begin()
    one = trained.reports(JOBS[:1])[0]
    first, second = await trained.engine.attempt([one, one])
    assert isinstance(first, Answer)
    assert isinstance(second, Answer)
    assert first.reply == second.reply
    assert (len(first.events), len(second.events)) == (1, 0)


async def test_ranks_that_report_the_same_epoch_make_no_other_batch_read(url: str, open_at: OpenAt) -> None:
    """As trainings of several ranks do over Zeus' wire."""
    trained = await Trained(open_at(url)).begin()
    recorded = trained.counting.recorded
    for _ in range(5):
        sent = trained.reports()
        other_rank = report(trained.trials[JOBS[0]], trained.epoch, job_id=JOBS[0])
        *judged, repeated = await trained.engine.attempt([*sent, other_rank])
        assert all(isinstance(one, Answer) and one.events for one in judged)
        assert isinstance(repeated, Answer)
        assert not repeated.events
        await trained.report_all()
    assert (trained.counting.recorded - recorded, trained.counting.refused) == (5, 0)
    await check_stored(trained.store, reports=trained.epoch * len(JOBS))


async def test_a_job_that_another_transaction_holds_keeps_only_its_own_commands_waiting(
    url: str, open_at: OpenAt
) -> None:
    trained = await Trained(open_at(url)).begin()
    rival = open_at(url)
    async with rival.unit_of_work() as uow:
        await uow.lock(JOBS[1:2], creating=())
        with trained.refusing():
            answers = await trained.engine.attempt(trained.reports())
    held = [one for one in answers if isinstance(one, Undecided)]
    assert [(one.request.job_id, type(one.cause)) for one in held] == [(JOBS[1], JobHeld)]
    assert sum(isinstance(one, Answer) and bool(one.events) for one in answers) == len(JOBS) - 1


async def test_a_job_that_was_deleted_meanwhile_is_read(url: str, open_at: OpenAt) -> None:
    trained = await Trained(open_at(url)).begin()
    rival = open_at(url)

    async def forget() -> None:
        async with rival.unit_of_work() as uow:
            await uow.lock(JOBS[:1], creating=())
            await uow.forget_job(JOBS[0])
            await uow.commit()

    trained.counting.before = forget
    with trained.refusing():
        first, *others = await trained.engine.attempt(trained.reports())
    assert isinstance(first, Answer)
    assert not isinstance(first.reply, EpochJudged)
    assert not first.events
    assert all(isinstance(one, Answer) and one.events for one in others)


@pytest.mark.parametrize(
    ("change", "is_outdated"),
    [
        ("UPDATE bso_log_epoch SET number = number + 1", False),
        ("UPDATE bso_log_epoch SET looked_at = looked_at - INTERVAL 1 HOUR", True),
        ("UPDATE bso_log_epoch SET outdated_at = UTC_TIMESTAMP(6)", True),
        ("DELETE FROM bso_log_epoch", True),
    ],
)
async def test_a_restored_backup_is_noticed(url: str, open_at: OpenAt, change: str, is_outdated: bool) -> None:
    store = open_at(url)
    _, trained = await watched(store)

    async def restore() -> None:
        async with store.engine.begin() as connection:
            await connection.execute(text(change))

    trained.counting.before = restore
    with trained.refusing():
        if is_outdated:
            with pytest.raises(LogOutdated):
                await trained.report_all()
        else:
            await trained.report_all()
    await check_stored(store, reports=(trained.epoch - is_outdated) * len(JOBS))


async def test_event_ids_that_are_given_again_are_no_reason_to_record(url: str, open_at: OpenAt) -> None:
    store = open_at(url)
    watch, trained = await watched(store)
    last_event_id = await store.last_event_id()
    assert watch.highest_event_id == last_event_id
    watch.recorded([last_event_id + 10**6])
    with trained.refusing(), pytest.raises(LogOutdated, match="event_id"):
        await trained.report_all()
    assert await store.last_event_id() == last_event_id


async def test_in_a_store_that_is_in_doubt_nothing_is_recorded(url: str, open_at: OpenAt) -> None:
    store = open_at(url)
    watch, trained = await watched(store)
    last_event_id = await store.last_event_id()
    watch.doubt(above=last_event_id, of=watch.seen)
    with pytest.raises(LogOutdated, match="event_id"):
        await trained.report_all()
    assert await store.last_event_id() == last_event_id


async def test_a_decision_that_was_made_long_ago_is_not_recorded(url: str, open_at: OpenAt) -> None:
    """As after a pause of the whole process between deciding and recording; a clock that was set looks the same."""
    trained = await Trained(open_at(url)).begin()
    for off_s in (3.0, -3.0):
        trained.counting.off = timedelta(seconds=off_s)
        with trained.refusing():
            await trained.report_all()
        trained.counting.off = timedelta()
        assert await trained.report_until_unread() >= READS
    await check_stored(trained.store, reports=trained.epoch * len(JOBS))


async def test_where_many_batches_are_recorded_a_refused_one_is_soon_forgiven(url: str, open_at: OpenAt) -> None:
    trained = await Trained(open_at(url)).begin()
    for _ in range(60):
        await trained.report_all()
    trained.counting.off = timedelta(seconds=3)
    with trained.refusing():
        await trained.report_all()
    trained.counting.off = timedelta()
    assert await trained.report_until_unread() < READS


async def test_an_epoch_that_was_reported_before_is_looked_up(url: str, open_at: OpenAt) -> None:
    """It comes under another command_id, and with another metric; only the log has what was reported first."""
    trained = await Trained(open_at(url)).begin()
    recorded = trained.counting.recorded
    again = [report(trained.trials[job_id], 1, job_id=job_id, metric=0.95) for job_id in JOBS]
    answers = await trained.engine.attempt(again)
    assert all(isinstance(one, Answer) and not one.events for one in answers)
    assert trained.counting.recorded == recorded
    await check_stored(trained.store, reports=trained.epoch * len(JOBS))


async def test_what_leaves_no_event_is_answered_after_reading(url: str, open_at: OpenAt) -> None:
    """Nothing in the log would show that such a command was decided before."""
    trained = await Trained(open_at(url)).begin()
    recorded = trained.counting.recorded
    wrong = replace(trained.trials[JOBS[0]], trial_number=999)
    refused, *judged = await trained.engine.attempt([report(wrong, 100, job_id=JOBS[0]), *trained.reports(JOBS[1:])])
    assert isinstance(refused, Answer)
    assert isinstance(refused.reply, Problem)
    assert all(isinstance(one, Answer) and one.events for one in judged)
    await trained.report_all()
    assert trained.counting.recorded == recorded, "the next batch may hold such a command, too"


async def test_the_clock_is_read_again_after_a_while(
    url: str, open_at: OpenAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = await Trained(open_at(url)).begin()
    recorded = []
    for lasts_s in (60.0, 0.0, 60.0):
        monkeypatch.setattr(optimistic, "CLOCK_LASTS_S", lasts_s)
        before = trained.counting.recorded
        await trained.report_all()
        recorded.append(trained.counting.recorded - before)
    assert recorded == [1, 0, 1]
    assert trained.counting.refused == 0


async def test_events_are_recorded_at_the_database_s_time(url: str, open_at: OpenAt) -> None:
    trained = await Trained(open_at(url)).begin()
    for _ in range(5):
        await trained.report_all()
    async with trained.store.unit_of_work() as uow:
        now = (await uow.recollect(())).now
    history = await whole_history(trained.store, JOBS[0])
    moments = [one.recorded_at for one in history]
    assert moments == sorted(moments)
    assert len({*moments}) > 5
    assert all(now - timedelta(seconds=60) < one <= now for one in moments)


async def test_where_the_outcome_is_unknown_jobs_are_read_again(
    url: str, open_at: OpenAt, tcp_proxy: Callable[[str], TcpProxy]
) -> None:
    """The answer to the COMMIT is lost; the commands come again."""
    proxy = tcp_proxy(url)
    trained = await Trained(open_at(proxy.url), attempt_s=4.0).begin()

    async def stall() -> None:
        proxy.stall_replies()

    sent = trained.reports()
    trained.counting.before = stall
    with pytest.raises(StoreTimedOut):
        await trained.engine.attempt(sent)
    proxy.restore()
    recorded = trained.counting.recorded
    answers = await trained.engine.attempt(sent)
    assert all(isinstance(one, Answer) and isinstance(one.reply, EpochJudged) for one in answers)
    assert (trained.counting.recorded, trained.counting.refused) == (recorded, 0), "it has read"
    await check_stored(trained.store, reports=trained.epoch * len(JOBS))


async def test_reports_of_one_job_by_three_processes_at_once_are_all_recorded(url: str, open_at: OpenAt) -> None:
    trained = await Trained(open_at(url)).begin()
    others = [Engine(store, optimistic=store.optimistic) for store in (open_at(url), open_at(url))]
    count = 60
    sent = [trained.reports(JOBS[:1])[0] for _ in range(count)]

    async def send(engine: Engine, requests: Sequence[Request]) -> None:
        for one in requests:
            [answer] = await engine.attempt([one])
            while isinstance(answer, Undecided):
                [answer] = await engine.attempt([one])
            assert isinstance(answer.reply, EpochJudged), answer

    await asyncio.gather(*(send(engine, sent[place::3]) for place, engine in enumerate([trained.engine, *others])))
    await assert_log_equals_tables(trained.store, JOBS[0])
    recorded = Counter(one.command_id for one in await whole_history(trained.store, JOBS[0]))
    assert [recorded[one.command_id] for one in sent] == [1] * count


async def test_a_rule_that_breaks_is_poison_for_its_own_command(url: str, open_at: OpenAt) -> None:
    broken = str(uuid.uuid4())
    trained = await Trained(open_at(url), rule=rule_that_breaks_on(broken)).begin()
    first, *others = trained.reports()
    poison, *answers = await trained.engine.attempt([replace(first, command_id=broken), *others])
    assert isinstance(poison, Answer)
    assert poison.poison is not None
    assert all(isinstance(one, Answer) and one.events for one in answers)


async def test_a_batch_of_which_nothing_is_decided_is_not_recorded(url: str, open_at: OpenAt) -> None:
    """The policy of its jobs is gone."""
    is_gone = False

    def rule(*given: Any) -> Decision:
        if is_gone:
            raise PolicyMissing("it was removed")
        return decide(*given)

    trained = await Trained(open_at(url), rule=rule).begin()
    recorded, is_gone = trained.counting.recorded, True
    answers = await trained.engine.attempt(trained.reports())
    assert all(isinstance(one, Undecided) and isinstance(one.cause, PolicyMissing) for one in answers)
    assert (trained.counting.recorded, trained.counting.refused) == (recorded, 0)
