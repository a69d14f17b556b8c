"""What a decision costs does not grow with history: counted in statements and rows, not in seconds."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiosqlite import Connection as SqliteConnection
from sqlalchemy import event

from bso.domain.commands import PowerMeasurement, RenewLease, ReportPowerProfile
from bso.domain.replies import TrialBegun
from bso.service.answers import Answer
from bso.service.engine import Engine
from bso.storage import SqlStore
from bso.storage.mysql import COMMIT, Requests
from bso_migrations import upgrade
from tests.contract.storage.job_requests import HARDWARE, ask, beginning, registration, report, request
from tests.contract.storage.siblings import like
from tests.integration.storage.conftest import OpenAt, read_of
from tests.servers import TcpProxy
from tools.private_servers import MariaDB

JOBS = [f"job-{number}" for number in range(4)]
ONE_LIMIT = (PowerMeasurement(power_limit_w=200.0, average_power_w=180.0, samples_per_s=1e3),)
STATEMENTS_OF_A_BATCH = 6
"""lock, recollect, insert events, their ids, upsert trials, upsert jobs."""
STATEMENTS_ON_POSTGRESQL = 3
"""lock, recollect, write."""


@contextmanager
def counted(store: SqlStore) -> Iterator[list[str]]:
    """The statements that a store sends, but for those that only begin or end a transaction."""
    statements: list[str] = []
    send = Requests.send

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    async def noted(self: Requests, texts: Sequence[str]) -> list[Sequence[Sequence[Any]]]:
        statements.extend(text for text in texts if text != COMMIT)
        return await send(self, texts)

    def noting(visit: Callable[..., Any]) -> Callable[..., Any]:
        def noted_visit(self: SqliteConnection, text: str, *values: Any) -> Any:
            statements.append(text)
            return visit(self, text, *values)

        return noted_visit

    event.listen(store.engine.sync_engine, "before_cursor_execute", note)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Requests, "send", noted)
        for name in ("execute_fetchall", "execute_insert", "executemany"):
            patch.setattr(SqliteConnection, name, noting(getattr(SqliteConnection, name)))
        yield statements
    event.remove(store.engine.sync_engine, "before_cursor_execute", note)


async def trained(engine: Engine, *, trials: int) -> dict[str, TrialBegun]:
    """Jobs with that many ended trials each, and one that is running."""
    await ask(engine, *(registration(job_id, early_stopping=False, max_epochs=10**6) for job_id in JOBS))
    for _ in range(trials):
        begun = await begin_everywhere(engine)
        epochs = [(epoch, 1.0 if epoch == 6 else 0.5) for epoch in range(1, 7)]
        await ask(
            engine,
            *(
                report(trial, epoch, job_id=job_id, metric=metric)
                for job_id, trial in begun.items()
                for epoch, metric in epochs
            ),
        )
    return await begin_everywhere(engine)


async def profiled(engine: Engine, batch_sizes: Sequence[int]) -> None:
    """The same power profile of these batch sizes of every job."""
    for size in batch_sizes:
        command = ReportPowerProfile(batch_size=size, hardware=HARDWARE, measurements=ONE_LIMIT)
        await ask(engine, *(request(command, job_id=job_id) for job_id in JOBS))


async def begin_everywhere(engine: Engine) -> dict[str, TrialBegun]:
    """One more trial of each job."""
    answers = await ask(engine, *(beginning(job_id) for job_id in JOBS))
    return {answer.request.job_id: answer.reply for answer in answers if isinstance(answer.reply, TrialBegun)}


async def test_a_batch_takes_the_same_few_statements_whatever_went_before(migrated_url: str, open_at: OpenAt) -> None:
    store = open_at(migrated_url)
    engine = Engine(store)
    counts = []
    epoch = 0
    for trials in (1, 10):
        running = await trained(engine, trials=trials)
        for size in (1, 8):
            batch = [
                report(running[job_id], epoch + step, job_id=job_id) for step in range(1, size + 1) for job_id in JOBS
            ]
            epoch += size
            with counted(store) as statements:
                await ask(engine, *batch)
            counts.append([one for one in statements if not one.startswith(("BEGIN", "SELECT 1"))])
    expected = STATEMENTS_ON_POSTGRESQL if store.engine.dialect.name == "postgresql" else STATEMENTS_OF_A_BATCH
    assert [len(statements) for statements in counts] == [expected] * 4, counts


@pytest.mark.parametrize("waits", [True, False])
async def test_a_batch_takes_few_round_trips(
    migrated_url: str, open_at: OpenAt, tcp_proxy: Callable[[str], TcpProxy], waits: bool
) -> None:
    """Lock and recollect, write and commit; for one report or many, also if another engine decided on the jobs last.
    Waiting for the locks of several jobs is a request of its own.
    """
    if "mysql" not in migrated_url:
        pytest.skip("only MySQL and MariaDB take several statements at once")
    proxy = tcp_proxy(migrated_url)
    engine, other = Engine(open_at(proxy.url)), Engine(open_at(migrated_url))
    running = await trained(engine, trials=1)
    for epoch, jobs, last in ((1, JOBS, engine), (2, JOBS[:1], engine), (4, JOBS, other)):
        if last is other:
            await ask(other, *(report(running[job_id], epoch - 1, job_id=job_id) for job_id in jobs))
        reports = [report(running[job_id], epoch, job_id=job_id) for job_id in jobs]
        before = proxy.requests
        answers = await (engine.execute(reports) if waits else engine.attempt(reports))
        assert all(isinstance(answer, Answer) and answer.events for answer in answers)
        assert proxy.requests - before == (3 if waits and len(jobs) > 1 else 2)


async def test_what_goes_out_with_the_lock_is_read_after_it(migrated_url: str, open_at: OpenAt) -> None:
    """A command that another transaction decides while this one waits to be sent is recognized."""
    engine, rival = Engine(open_at(migrated_url)), Engine(open_at(migrated_url))
    await ask(engine, *map(registration, JOBS))
    for _ in range(10):
        twice = [beginning(job_id) for job_id in JOBS]
        first, second = await asyncio.gather(engine.attempt(twice), rival.attempt(twice))
        for one, other in zip(first, second, strict=True):
            decided = [each for each in (one, other) if isinstance(each, Answer)]
            assert len({str(each.reply) for each in decided}) == 1
            assert sum(bool(each.events) for each in decided) == 1
        rows = [len(await open_at(migrated_url).trials(job_id)) for job_id in JOBS]
        assert len(set(rows)) == 1


@pytest.mark.parametrize(("waits", "jobs"), [(False, JOBS), (True, JOBS[:1]), (True, JOBS)])
async def test_of_a_job_that_nobody_else_has_changed_neither_state_nor_trials_are_read_again(
    migrated_url: str, open_at: OpenAt, waits: bool, jobs: Sequence[str]
) -> None:
    store = open_at(migrated_url)
    engine, other = Engine(store), Engine(open_at(migrated_url))
    running = await trained(engine, trials=1)
    reads: list[int] = []

    async def report_all(by: Engine, epoch: int) -> None:
        reports = [report(running[job_id], epoch, job_id=job_id) for job_id in jobs]
        answers = await (by.execute(reports) if waits else by.attempt(reports))
        assert all(isinstance(answer, Answer) and answer.events for answer in answers)

    await report_all(engine, 1)
    for epoch, by in ((2, engine), (3, other), (4, engine), (5, engine)):
        with read_of() as found:
            await report_all(by, epoch)
        reads.append(len(found))
    both = 2 * len(jobs)  # the state and the trial of each job
    assert reads == ([both] * 4 if waits and len(jobs) > 1 else [0, both, both, 0])


async def test_one_report_alone_learns_the_id_of_its_event_without_another_round_trip(
    migrated_url: str, open_at: OpenAt
) -> None:
    store = open_at(migrated_url)
    engine = Engine(store)
    await ask(engine, registration("alone"))
    (begun,) = await ask(engine, beginning("alone"))
    assert isinstance(begun.reply, TrialBegun)
    with counted(store) as statements:
        (answer,) = await ask(engine, report(begun.reply, 1, job_id="alone"))
    sent = [one for one in statements if not one.startswith(("BEGIN", "SELECT 1"))]
    expected = {"mysql": STATEMENTS_OF_A_BATCH, "postgresql": STATEMENTS_ON_POSTGRESQL}
    assert len(sent) == expected.get(store.engine.dialect.name, STATEMENTS_OF_A_BATCH - 1), sent
    assert [one.event_id for one in answer.events] == [await store.last_event_id("alone")]


async def test_profiles_are_loaded_in_one_statement_and_only_for_who_begins_or_resumes(
    migrated_url: str, open_at: OpenAt
) -> None:
    store = open_at(migrated_url)
    engine = Engine(store)
    await trained(engine, trials=1)
    with counted(store) as statements:
        await begin_everywhere(engine)
    assert not [one for one in statements if "FROM power_profile" in one], "there are none"
    await profiled(engine, (32, 64, 128))
    with counted(store) as statements:
        begun = await begin_everywhere(engine)
    assert [len(trial.power_profile) for trial in begun.values()] == [1] * len(JOBS)
    assert len([one for one in statements if "FROM power_profile" in one]) == 1
    renewals = [RenewLease(trial_number=one.trial_number, trial_id=one.trial_id) for one in begun.values()]
    for is_resumption in (False, True):
        batch = [
            request(replace(renewal, is_resumption=is_resumption), job_id=job_id)
            for job_id, renewal in zip(begun, renewals, strict=True)
        ]
        with counted(store) as statements:
            await ask(engine, *batch)
        assert len([one for one in statements if "FROM power_profile" in one]) == is_resumption


async def test_jobs_to_inherit_from_are_read_in_one_statement_and_not_again_if_they_are_locked(
    migrated_url: str, open_at: OpenAt
) -> None:
    store = open_at(migrated_url)
    engine = Engine(store)
    await ask(engine, registration("a"), registration("b"))
    reads = []
    for batch in (
        [registration("c")],
        [like("d", "a"), like("e", "b"), like("f", "a")],
        [like("g", "a"), beginning("a")],
    ):
        with counted(store) as statements:
            await ask(engine, *batch)
        reads.append(
            len(
                [
                    one
                    for one in statements
                    if one.startswith("SELECT job.job_id, job.last_seq, job.revision, job.state")
                ]
            )
        )
    assert reads == [1 + 1, 1 + 1, 2]  # what is to be created is looked for, and locked, in statements of their own


async def test_beginning_reads_the_same_few_profiles_whatever_other_jobs_have(
    mariadb_server: MariaDB, open_at: OpenAt
) -> None:
    url = mariadb_server.create_database()
    await upgrade(url)
    engine = Engine(open_at(url))
    await trained(engine, trials=1)
    await profiled(engine, (32, 64, 128))
    few = await rows_read_by(mariadb_server, begin_everywhere(engine))
    other = replace(HARDWARE, gpu_model="another")
    for number in range(40):
        job_id = f"other-{number:02}"
        await ask(engine, registration(job_id))
        await ask(
            engine,
            *(
                request(ReportPowerProfile(batch_size=size, hardware=kind, measurements=ONE_LIMIT), job_id=job_id)
                for size in (32, 64, 128)
                for kind in (HARDWARE, other)
            ),
        )
    many = await rows_read_by(mariadb_server, begin_everywhere(engine))
    assert many <= 1.2 * few + 20, (few, many)


async def test_a_batch_reads_the_same_few_rows_whatever_went_before(mariadb_server: MariaDB, open_at: OpenAt) -> None:
    url = mariadb_server.create_database()
    await upgrade(url)
    store = open_at(url)
    engine = Engine(store)
    reads = []
    for trials in (5, 40):
        running = await trained(engine, trials=trials)
        batch = [report(running[job_id], epoch, job_id=job_id) for epoch in range(1, 9) for job_id in JOBS]
        costs = [await rows_read_by(mariadb_server, ask(engine, *batch)) for _ in ("decided", "sent again")]
        reads.append([*costs, await rows_read_by(mariadb_server, store.lapsed_leases())])
    few, many = reads
    assert all(later <= 1.2 * earlier + 10 for earlier, later in zip(few, many, strict=True)), reads
    decided, sent_again, lapsed = many
    assert decided < 250  # 4 jobs with 2 active trials each, 32 events
    assert sent_again < 100
    assert lapsed < 20  # most of them by looking at the counter itself


async def rows_read_by(server: MariaDB, work: Awaitable[object]) -> int:
    """How many rows the server looks at meanwhile."""
    before = rows_read(server)
    await work
    return rows_read(server) - before


def rows_read(server: MariaDB) -> int:
    """How many rows the server has looked at so far."""
    lines = server.execute("SHOW GLOBAL STATUS LIKE 'Handler_read%'").splitlines()
    return sum(int(line.split()[1]) for line in lines)
