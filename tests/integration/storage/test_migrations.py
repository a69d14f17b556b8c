"""The schema: made, compared, upgraded together, taken back, and written down for others to run."""

import asyncio
import itertools
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import event, text

import bso_migrations
from bso.domain.errors import Misconfigured, Retryable
from bso.service.engine import Engine
from bso.service.errors import SchemaMissing, StoreNotReady
from bso.service.readiness import require_schema
from bso.service.records import SchemaStatus
from bso.storage import SqlStore, open_store
from bso.storage.connections import ConnectionLimits, create_engine
from bso.storage.tables import SCHEMA_REVISION, metadata
from bso.storage.urls import database_url as normalised
from bso_migrations import check, current, sql, upgrade
from bso_migrations.errors import DatabaseStillAway, UpgradeInProgress
from bso_migrations.lock import upgrade_lock
from tests.contract.storage.job_requests import ask, assert_log_equals_tables, begin, registration
from tests.integration.storage.conftest import OpenAt
from tests.integration.storage.older_schema import go_back
from tests.servers import PATIENCE_S, eventually_async
from tools.private_servers import MariaDB


async def test_the_revisions_make_exactly_the_tables_that_the_program_knows(database_url: str) -> None:
    assert (await current(database_url)).status is SchemaStatus.MISSING
    state = await upgrade(database_url)
    assert (state.found, state.status) == (SCHEMA_REVISION, SchemaStatus.CURRENT)
    assert await check(database_url) == ()
    assert await current(database_url) == state


async def test_a_difference_is_noticed(migrated_url: str) -> None:
    await _execute(migrated_url, "DROP INDEX ix_trial_lease" + _on_table(migrated_url, "trial"))
    [difference] = await check(migrated_url)
    assert "ix_trial_lease" in difference


async def test_tables_of_others_in_the_same_database_are_none_of_our_business(migrated_url: str) -> None:
    await _execute(migrated_url, "CREATE TABLE somebody_elses (id INTEGER PRIMARY KEY)")
    assert await check(migrated_url) == ()


@pytest.mark.parametrize("revision", range(1, int(SCHEMA_REVISION)))
async def test_an_upgrade_begins_at_any_revision(migrated_url: str, revision: int) -> None:
    await go_back(migrated_url, revision=revision)
    state = await current(migrated_url)
    assert (state.found, state.status) == (f"{revision:04}", SchemaStatus.OLDER)
    await upgrade(migrated_url)
    assert await check(migrated_url) == ()


async def test_an_upgrade_of_what_is_up_to_date_says_so(migrated_url: str) -> None:
    said: list[str] = []
    await upgrade(migrated_url, progress=said.append)
    assert said == [f"the schema is up to date ({SCHEMA_REVISION})"]


async def test_a_step_that_was_taken_but_not_recorded_is_no_error(migrated_url: str) -> None:
    """A server that died between a DDL statement, which MySQL commits at once, and the record of its revision."""
    for revision in range(1, int(SCHEMA_REVISION)):
        await _execute(migrated_url, f"UPDATE bso_schema_version SET version_num = '{revision:04}'")
        await upgrade(migrated_url)
    assert await check(migrated_url) == ()


async def test_a_step_that_was_taken_half_is_finished(migrated_url: str) -> None:
    await _execute(migrated_url, "DROP INDEX ix_event_epoch" + _on_table(migrated_url, "event"))
    await _execute(migrated_url, "UPDATE bso_schema_version SET version_num = '0002'")
    await upgrade(migrated_url)
    assert await check(migrated_url) == ()


async def test_several_upgrades_at_once_do_it_once(database_url: str) -> None:
    programs = [await _start_upgrade(database_url) for _ in range(3)]
    ends = await asyncio.gather(*(program.communicate() for program in programs))
    assert [(program.returncode, error) for program, (_, error) in zip(programs, ends, strict=True)] == [(0, b"")] * 3
    told = [output.decode().strip() for output, _ in ends]
    assert sum("upgrading the schema from nothing" in words for words in told) == 1, told
    assert await check(database_url) == ()


async def test_files_are_upgraded_at_once_by_tasks_and_threads_of_one_process(tmp_path: Path) -> None:
    """Alembic's context is the whole process': two trainings in threads, each with a file of its own, share it."""

    def url(thread: int, task: int) -> str:
        return f"sqlite:///{tmp_path / f'{thread}-{task}.sqlite'}"

    async def several(thread: int) -> list[SchemaStatus]:
        states = await asyncio.gather(*(upgrade(url(thread, task)) for task in range(3)))
        return [state.status for state in states]

    threads = [asyncio.to_thread(asyncio.run, several(thread)) for thread in range(3)]
    assert await asyncio.gather(*threads) == [[SchemaStatus.CURRENT] * 3] * 3


async def test_an_upgrade_waits_for_another_and_gives_up_at_its_deadline(server_url: str) -> None:
    said: list[str] = []
    engine = create_engine(normalised(server_url), ConnectionLimits(pool_size=1))
    async with engine.connect() as connection:
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        async with upgrade_lock(connection, deadline, said.append):
            with pytest.raises(UpgradeInProgress, match="another process"):
                await upgrade_in_vain(server_url)
            waiting = asyncio.create_task(upgrade(server_url, timeout_s=PATIENCE_S, progress=said.append))
            await eventually_async(lambda: said)
            assert not waiting.done()
    assert (await waiting).status is SchemaStatus.CURRENT
    await engine.dispose()
    assert said[0] == "waiting for another process that is upgrading the schema"


async def upgrade_in_vain(url: str) -> None:
    """Run into the deadline while the lock is waited for, however long it takes to connect on this machine."""
    timeout_s = 0.5
    while True:
        try:
            await upgrade(url, timeout_s=timeout_s)
        except DatabaseStillAway:
            timeout_s *= 2


async def test_a_locked_file_is_waited_for(sqlite_url: str) -> None:
    path = normalised(sqlite_url).database
    assert path is not None
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("BEGIN IMMEDIATE")
    statements: list[str] = []

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        waiting = asyncio.create_task(upgrade(sqlite_url))
        await eventually_async(lambda: "BEGIN IMMEDIATE" in statements)
        assert not waiting.done()
        other.execute("COMMIT")
        other.close()
        assert (await waiting).status is SchemaStatus.CURRENT
    finally:
        event.remove(sa.Engine, "before_cursor_execute", note)


async def test_an_upgrade_waits_for_the_database(breakable_mariadb: MariaDB) -> None:
    url = breakable_mariadb.create_database()
    await asyncio.to_thread(breakable_mariadb.kill)
    said: list[str] = []
    with pytest.raises(DatabaseStillAway, match="does not answer"):
        await upgrade(url, timeout_s=0.5)
    told = asyncio.Event()

    def receive(sentence: str) -> None:
        said.append(sentence)
        told.set()

    waiting = asyncio.create_task(upgrade(url, timeout_s=PATIENCE_S, progress=receive))
    await told.wait()
    await asyncio.to_thread(breakable_mariadb.start)
    assert (await waiting).status is SchemaStatus.CURRENT
    assert said[0].startswith("waiting for mysql+asyncmy://root")


async def test_a_frozen_database_ends_the_waiting(breakable_mariadb: MariaDB) -> None:
    url = breakable_mariadb.create_database()
    breakable_mariadb.freeze()
    with pytest.raises(DatabaseStillAway):
        await current(url, timeout_s=0.5)
    with pytest.raises(Retryable):
        await upgrade(url, timeout_s=0.5)


@pytest.mark.parametrize("dialect", ["mysql", "mariadb", "postgresql", "sqlite"])
def test_the_statements_can_be_written_down(dialect: str) -> None:
    script = sql(dialect)
    for table in metadata.tables:
        assert f"CREATE TABLE IF NOT EXISTS {table}" in script
    assert script.count("INSERT INTO bso_schema_version") == 1
    assert "CREATE INDEX ix_event_unpublished" in script


def test_there_is_no_sql_for_an_unknown_database() -> None:
    with pytest.raises(Misconfigured, match="known are mysql, mariadb, postgresql, sqlite"):
        sql("oracle")


async def test_what_was_written_down_makes_the_same_tables(database_url: str) -> None:
    dialect = normalised(database_url).get_backend_name()
    for statement in sql(dialect).split(";\n"):
        lines = [line for line in statement.splitlines() if not line.startswith("--")]
        if "".join(lines).strip() not in ("", "BEGIN", "COMMIT"):
            await _execute(database_url, "\n".join(lines).replace(":", r"\:"))
    assert (await current(database_url)).status is SchemaStatus.CURRENT
    assert await check(database_url) == ()


async def test_a_newer_schema_is_not_ready_rather_than_broken(migrated_url: str, open_at: OpenAt) -> None:
    await _execute(migrated_url, "UPDATE bso_schema_version SET version_num = '9999'")
    with pytest.raises(StoreNotReady, match="upgrade"):
        await upgrade(migrated_url)
    with pytest.raises(StoreNotReady, match="newer release"):
        await require_schema(open_at(migrated_url))


async def test_an_older_schema_asks_for_bso_migrate(migrated_url: str, open_at: OpenAt) -> None:
    await go_back(migrated_url, revision=4)
    with pytest.raises(SchemaMissing, match="run `bso migrate`"):
        await require_schema(open_at(migrated_url))


async def test_an_upgrade_keeps_the_rows(migrated_url: str, open_at: OpenAt) -> None:
    store = open_at(migrated_url)
    engine = Engine(store)
    await ask(engine, registration())
    await begin(engine)
    await go_back(migrated_url, revision=3)
    await upgrade(migrated_url)
    await assert_log_equals_tables(store)


def test_every_revision_is_one_step_and_the_last_one_is_the_programs() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(bso_migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    revisions = [script.revision for script in scripts.walk_revisions()]
    assert revisions == [f"{number:04}" for number in range(int(SCHEMA_REVISION), 0, -1)]
    for script in scripts.walk_revisions():
        source = Path(script.path).read_text()
        steps = [line for line in source.splitlines() if line.startswith(("    add_", "    create_", "    op."))]
        assert len(steps) == 1, script.path
    previous = itertools.pairwise(scripts.walk_revisions())
    assert all(later.down_revision == earlier.revision for later, earlier in previous)


async def _start_upgrade(url: str) -> asyncio.subprocess.Process:
    program = (
        "import asyncio, sys; from bso_migrations import upgrade; asyncio.run(upgrade(sys.argv[1], progress=print))"
    )
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, "-c", program, url, stdout=pipe, stderr=pipe)


def _on_table(url: str, table: str) -> str:
    return f" ON {table}" if normalised(url).get_backend_name() == "mysql" else ""


async def _execute(url: str, statement: str) -> None:
    store: SqlStore = open_store(url)
    async with store.engine.connect() as connection:
        await connection.execute(text(statement))
        await connection.commit()
    await store.close()


def test_an_upgrade_leaves_alembics_chatter_out_of_the_programs_log(tmp_path: Path) -> None:
    code = (
        "import asyncio, logging\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "from bso_migrations import upgrade\n"
        f"asyncio.run(upgrade('sqlite:///{tmp_path / 'new.sqlite'}'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "alembic" not in done.stderr
