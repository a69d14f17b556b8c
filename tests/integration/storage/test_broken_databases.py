"""Servers that die, freeze, refuse and forget: nothing is lost, nothing happens twice, nothing hangs."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from bso.domain.commands import Request
from bso.domain.errors import Misconfigured, Retryable
from bso.domain.replies import EpochJudged, TrialBegun
from bso.service.answers import Answer
from bso.service.engine import Engine, Patience
from bso.service.errors import (
    DatabaseMissing,
    SchemaMissing,
    StoreLoginRefused,
    StoreLost,
    StoreRefused,
    StoreUnavailable,
)
from bso.service.ports import UnitOfWork
from bso.storage import SqlStore
from bso.storage.connections import ConnectionLimits, create_engine
from bso.storage.mysql import Requests
from bso.storage.urls import database_url as normalised
from bso_migrations import upgrade
from tests.contract.storage.doubles import SteppedStore
from tests.contract.storage.job_requests import (
    JOB,
    ask,
    assert_log_equals_tables,
    begin,
    beginning,
    registration,
    report,
    whole_history,
)
from tests.integration.storage.conftest import LIMITS, OpenAt
from tests.servers import PATIENCE_S, TcpProxy, eventually_async
from tests.servers.sql import execute
from tools.private_servers import MariaDB, PostgreSQL

IMPATIENT = Patience(attempt_s=1.5, attempts=3, total_s=4.0)

Breakable = MariaDB | PostgreSQL


@pytest.fixture(params=["breakable_mariadb", "breakable_postgresql"])
def breakable(request: pytest.FixtureRequest) -> Breakable:
    """A private server of each kind in turn, to be broken."""
    server: Breakable = request.getfixturevalue(request.param)
    return server


@pytest.fixture
async def breakable_url(breakable: Breakable) -> str:
    """A database with tables on it."""
    url = breakable.create_database()
    await upgrade(url)
    return url


async def until_answered(engine: Engine, *requests: Request) -> list[Answer]:
    """What a worker does: send the same commands again until there is an answer."""

    async def once() -> list[Answer]:
        try:
            return await ask(engine, *requests)
        except Retryable:
            return []

    return await eventually_async(once, what="an answer")


async def test_a_server_that_is_killed_again_and_again_loses_and_doubles_nothing(
    breakable: Breakable, breakable_url: str, open_at: OpenAt
) -> None:
    store = open_at(breakable_url)
    engine = Engine(store, patience=Patience(attempt_s=5.0, attempts=3, total_s=5.0))
    await ask(engine, registration(early_stopping=False))
    trial = await begin(engine)
    reports = [report(trial, epoch) for epoch in range(1, 13)]
    progress = asyncio.Queue[int]()

    async def train() -> list[Answer]:
        answers = []
        for number, told in enumerate(reports):
            answers += await until_answered(engine, told)
            progress.put_nowait(number)
        return answers

    training = asyncio.create_task(train())
    for until in (2, 5, 8):
        while await progress.get() < until:
            pass
        await asyncio.to_thread(breakable.kill)
        await asyncio.to_thread(breakable.start)
    answers = await training
    assert [isinstance(answer.reply, EpochJudged) for answer in answers] == [True] * 12
    folded = await assert_log_equals_tables(store)
    assert folded.trials[1].reports == 12
    ids = [recorded.command_id for recorded in await whole_history(store, JOB) if recorded.part == 0]
    assert sorted(ids[-12:]) == sorted(told.command_id for told in reports)


@pytest.mark.slow
@pytest.mark.parametrize("rest_s", [0.0, 60.0])
async def test_connections_lost_since_they_were_used_are_noticed_by_nobody(
    breakable: Breakable, breakable_url: str, open_at: OpenAt, rest_s: float
) -> None:
    store = open_at(breakable_url, replace(LIMITS, rest_s=rest_s))
    engine = Engine(store)
    await ask(engine, registration())
    for use in (store.ping, store.schema_state, lambda: ask(engine, beginning())):
        await asyncio.gather(*(store.ping() for _ in range(3)))  # so many connections
        await asyncio.to_thread(breakable.kill)
        await asyncio.to_thread(breakable.start)
        await use()
    assert len(await store.trials(JOB)) == 1


async def test_a_frozen_server_hangs_nobody(breakable: Breakable, breakable_url: str, open_at: OpenAt) -> None:
    store = open_at(breakable_url)
    engine = Engine(store, patience=IMPATIENT)
    await ask(engine, registration())
    asked = beginning()
    breakable.freeze()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(StoreUnavailable, match="did not answer"):
            await engine.execute([asked])
        newcomer = open_at(breakable_url)
        with pytest.raises(StoreUnavailable):
            await Engine(newcomer, patience=IMPATIENT).execute([asked])
        await newcomer.close()
    breakable.thaw()
    [answer] = await until_answered(engine, asked)
    assert isinstance(answer.reply, TrialBegun)
    assert answer.reply.trial_number == 1
    await assert_log_equals_tables(store)


async def test_a_server_that_freezes_in_the_middle_of_a_batch_hangs_nobody(
    breakable: Breakable, breakable_url: str, open_at: OpenAt
) -> None:
    store = open_at(breakable_url)
    await ask(Engine(store), registration())
    asked = beginning()

    async def freeze_and_commit(uow: UnitOfWork) -> None:
        breakable.freeze()
        await uow.commit()

    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(StoreUnavailable, match="did not answer"):
            await Engine(SteppedStore(store, freeze_and_commit), patience=IMPATIENT).execute([asked])
    breakable.thaw()
    [answer] = await until_answered(Engine(store), asked)
    assert isinstance(answer.reply, TrialBegun)
    assert len(await store.trials(JOB)) == 1


async def test_reads_of_a_frozen_server_end_too(breakable: Breakable, breakable_url: str) -> None:
    engine = create_engine(normalised(breakable_url), LIMITS)
    await SqlStore(engine).ping()
    store = SqlStore(engine, read_timeout_s=1.0)
    breakable.freeze()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(StoreUnavailable, match="did not answer within 1 s"):
            await store.ping()
        with pytest.raises(StoreUnavailable, match="did not answer within 1 s"):
            await store.mark_published([1])
        await store.close()


@pytest.mark.parametrize("was_committed", [True, False])
async def test_a_connection_lost_in_the_commit_is_asked_again_by_command_id(
    server_url: str, open_at: OpenAt, tcp_proxy: Callable[[str], TcpProxy], was_committed: bool
) -> None:
    await upgrade(server_url)
    direct, proxy = open_at(server_url), tcp_proxy(server_url)
    await ask(Engine(direct), registration())
    cuts = 0

    async def cut_in_the_commit(uow: UnitOfWork) -> None:
        nonlocal cuts
        cuts += 1
        if cuts > 1:
            await uow.commit()
            return
        if was_committed:
            proxy.stall_replies_after(b"COMMIT")
        else:
            proxy.stall_requests()
        commit = asyncio.create_task(uow.commit())
        if was_committed:
            await eventually_async(lambda: direct.trials(JOB), what="the commit")
        await asyncio.sleep(0)  # noqa: TID251 - the commit begins
        proxy.drop()
        proxy.restore()
        await commit

    engine = Engine(SteppedStore(open_at(proxy.url), cut_in_the_commit))
    [answer] = await ask(engine, beginning())
    assert isinstance(answer.reply, TrialBegun)
    assert answer.reply.trial_number == 1
    assert (answer.is_repeat, cuts) == (was_committed, 2)
    assert len(await direct.trials(JOB)) == 1
    await assert_log_equals_tables(direct)


OTHERS = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"


async def test_a_connection_killed_by_an_operator_is_replaced(mysql_url: str, open_at: OpenAt) -> None:
    await upgrade(mysql_url)
    store, operator = open_at(mysql_url), open_at(mysql_url)
    await ask(Engine(store), registration())
    kills = 0

    async def kill_before_commit(uow: Any) -> None:
        nonlocal kills
        kills += 1
        if kills == 1:
            await execute(operator, f"KILL {await execute(operator, OTHERS)}")
        await uow.commit()

    [answer] = await ask(Engine(SteppedStore(store, kill_before_commit)), beginning())
    assert isinstance(answer.reply, TrialBegun)
    assert (answer.reply.trial_number, kills) == (1, 2)
    await assert_log_equals_tables(store)


async def test_a_connection_lost_between_statements_is_a_lost_one(
    server_url: str, open_at: OpenAt, tcp_proxy: Callable[[str], TcpProxy]
) -> None:
    await upgrade(server_url)
    proxy = tcp_proxy(server_url)
    store = open_at(proxy.url)
    await ask(Engine(store), registration())

    async def lose() -> None:
        async with store.unit_of_work() as uow:
            await uow.lock([JOB], creating=())
            proxy.drop()
            await uow.recollect(["00000000-0000-4000-8000-000000000001"])

    with pytest.raises(StoreLost):
        await lose()
    proxy.cut()
    with pytest.raises(Retryable):
        await Engine(store, patience=IMPATIENT).execute([beginning()])
    proxy.restore()
    await begin(Engine(store))


@pytest.mark.parametrize("statement", [b"INSERT INTO event", b"INSERT INTO trial", b"INSERT INTO job", b"@@auto_inc"])
async def test_a_request_that_fails_in_its_midst_commits_nothing_and_leaves_a_good_connection(
    statement: bytes, mysql_url: str, open_at: OpenAt, tcp_proxy: Callable[[str], TcpProxy]
) -> None:
    await upgrade(mysql_url)
    direct, proxy = open_at(mysql_url), tcp_proxy(mysql_url)
    store = open_at(proxy.url, ConnectionLimits(pool_size=1))
    await ask(Engine(store), registration(), registration("another"))
    before = await whole_history(direct)
    proxy.replaces = (statement, statement[:-2] + b"zz")
    asked = [beginning(), beginning("another")]
    with pytest.raises((SchemaMissing, StoreRefused)):
        await Engine(store).execute(asked)
    assert await whole_history(direct) == before
    assert await direct.trials(JOB) == []
    proxy.replaces = None
    opened = proxy.connections
    assert [answer.is_repeat for answer in await Engine(store).execute(asked)] == [False, False]
    assert proxy.connections == opened, "the connection is another one"
    await assert_log_equals_tables(direct)


async def test_a_connection_that_has_lost_its_place_among_the_answers_is_lost(mysql_url: str, open_at: OpenAt) -> None:
    """It would take the answer to one statement for that to another."""
    async with open_at(mysql_url).engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        with pytest.raises(StoreLost, match="fewer statements"):
            await Requests(driver, packet_limit=2000).send(["SELECT 1", ""])
        await connection.invalidate()


async def test_a_read_only_server_is_no_reason_to_give_commands_up(breakable_mariadb: MariaDB, open_at: OpenAt) -> None:
    url = breakable_mariadb.create_database()
    await upgrade(url)
    store = open_at(breakable_mariadb.create_login(url))
    engine = Engine(store)
    await ask(engine, registration())
    breakable_mariadb.execute("SET GLOBAL read_only = 1")
    try:
        asked = [beginning(), beginning()]
        with pytest.raises(StoreRefused, match="1290"):
            await engine.execute(asked)
    finally:
        breakable_mariadb.execute("SET GLOBAL read_only = 0")
    assert [answer.poison for answer in await engine.execute(asked)] == [None, None]
    await assert_log_equals_tables(store)


async def test_a_full_disk_is_no_reason_to_give_commands_up(sqlite_url: str, open_at: OpenAt) -> None:
    await upgrade(sqlite_url)
    store = open_at(sqlite_url, ConnectionLimits(pool_size=1))
    engine = Engine(store)
    await ask(engine, registration())
    trial = await begin(engine)
    pages = await execute(store, "PRAGMA page_count")
    await execute(store, f"PRAGMA max_page_count = {pages}")
    asked = [report(trial, epoch) for epoch in range(1, 200)]
    with pytest.raises(StoreRefused, match="full"):
        await engine.execute(asked)
    await execute(store, "PRAGMA max_page_count = 100000")
    assert {answer.poison for answer in await engine.execute(asked)} == {None}
    await assert_log_equals_tables(store)


async def test_a_file_that_was_deleted_and_replaced_is_opened_anew(sqlite_url: str, open_at: OpenAt) -> None:
    """Two programs would go on in two files, and what the one on the deleted file records would be lost."""
    await upgrade(sqlite_url)
    store = open_at(sqlite_url)
    await ask(Engine(store), registration())
    file = make_url(sqlite_url).database
    assert file is not None
    for name in Path(file).parent.glob(f"{Path(file).name}*"):
        name.unlink()
    await upgrade(sqlite_url)
    await ask(Engine(open_at(sqlite_url)), registration("another"))
    assert [job.job_id for job in await store.jobs()] == ["another"]


async def test_missing_tables_say_bso_migrate(database_url: str, open_at: OpenAt) -> None:
    store = open_at(database_url)
    with pytest.raises(SchemaMissing, match="bso migrate"):
        await Engine(store).execute([registration()])
    with pytest.raises(SchemaMissing, match="bso migrate"):
        await store.jobs()


async def test_a_table_that_is_dropped_underneath_is_no_reason_to_give_commands_up(
    migrated_url: str, open_at: OpenAt
) -> None:
    store = open_at(migrated_url)
    engine = Engine(store)
    await ask(engine, registration())
    await execute(store, "ALTER TABLE trial RENAME TO trial_away")
    asked = [beginning(), beginning()]
    with pytest.raises(SchemaMissing, match="bso migrate"):
        await engine.execute(asked)
    await execute(store, "ALTER TABLE trial_away RENAME TO trial")
    assert [answer.poison for answer in await engine.execute(asked)] == [None, None]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"username": "nobody", "password": "wrong-secret"}, StoreLoginRefused, "refused the login"),
        ({"database": "no_such_database"}, DatabaseMissing, "has no such database.*no_such_database"),
        ({"port": 9}, StoreUnavailable, "onnect"),
        ({"host": "no-such-host.invalid"}, StoreUnavailable, "no-such-host.invalid|not known|resolution"),
    ],
)
async def test_a_wrong_address_says_what_is_wrong(
    server_url: str, open_at: OpenAt, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    store = open_at(make_url(server_url).set(**change).render_as_string(hide_password=False))
    with pytest.raises(error, match=words) as raised:
        await store.ping()
    assert isinstance(raised.value, Retryable | Misconfigured)
    assert "wrong-secret" not in str(raised.value)
    with pytest.raises(error):
        await Engine(store).execute([registration()])
