"""Two logins: one that changes tables, for upgrades, and one that reads and writes rows, for all the rest."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bso.domain.errors import Misconfigured
from bso.service.engine import Engine
from bso.service.errors import StorePrivilegeMissing
from bso_migrations import check, current, upgrade
from bso_migrations.privileges import ROWS, TABLES
from tests.acceptance.conftest import command_in
from tests.contract.storage.job_requests import ask, begin, registration
from tests.integration.logins import Database, url_of
from tests.integration.storage.conftest import OpenAt
from tests.integration.storage.older_schema import go_back
from tools.private_servers import MariaDB, PostgreSQL, new_password


@pytest.fixture(params=["mariadb_server", "postgresql_server"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database of each kind, set up by the statements of the page."""
    with Database.made(request.getfixturevalue(request.param).start()) as made:
        yield made


async def test_the_two_logins_of_the_page_are_enough(database: Database, open_at: OpenAt) -> None:
    """Also when the upgrade begins in the middle: what the worker's login may do is granted before the tables are."""
    await upgrade(database.url("bso_migrate"))
    await go_back(database.admin_url, revision=3)
    await upgrade(database.url("bso_migrate"))
    assert await check(database.url("bso_migrate")) == ()
    assert (await current(database.url("bso_worker"))).status.value == "current"
    engine = Engine(open_at(database.url("bso_worker")))
    await ask(engine, registration())
    await begin(engine)


async def test_a_workers_login_cannot_change_tables(database: Database) -> None:
    await upgrade(database.url("bso_migrate"))
    await go_back(database.admin_url, revision=5)
    with pytest.raises(StorePrivilegeMissing, match="lacks"):
        await upgrade(database.url("bso_worker"))


@pytest.mark.slow
async def test_every_command_of_an_operator_works_with_the_rights_of_a_worker(
    database: Database, open_at: OpenAt, tmp_path: Path
) -> None:
    bso = command_in(tmp_path / "state")
    bso.environment["BSO_DATABASE_URL"] = database.url("bso_worker")
    bso.ok("migrate", BSO_MIGRATE_DATABASE_URL=database.url("bso_migrate"))
    engine = Engine(open_at(database.url("bso_worker")))
    await ask(engine, *map(registration, ("kept", "purged", "pruned")))
    exported = tmp_path / "export.jsonl"
    for words in (
        "migrate --check",
        "doctor",
        "jobs list",
        "jobs delete purged --yes",
        "jobs purge --before 0d --yes",
        f"events prune --before 0d --export {tmp_path}/pruned.jsonl --yes",
        f"replay export --output {exported}",
        f"replay import {exported}",
        "replay verify",
        "replay rebuild kept --yes",
        "restored",
    ):
        done = bso(*words.split())
        assert "lacks a privilege" not in done.stdout + done.stderr, words
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    assert exported.exists()


@pytest.mark.parametrize("privilege", [*ROWS, *TABLES])
async def test_an_upgrade_of_mysql_names_the_privilege_that_it_lacks_and_the_statement_that_grants_it(
    mariadb_server: MariaDB, privilege: str
) -> None:
    url = mariadb_server.create_database()
    name, login, password = url.rpartition("/")[2], f"poor_{url[-12:]}", new_password()
    rest = ", ".join({*ROWS, *TABLES} - {privilege})
    mariadb_server.execute(
        f"CREATE USER {login}@'%' IDENTIFIED BY '{password}'; GRANT {rest} ON {name}.* TO {login}@'%'"
    )
    poor = url_of(url, login, password)
    try:
        await _through_all_revisions(url, poor)
    except StorePrivilegeMissing as error:
        words = str(error)
        assert f"the login '{login}'@'%' lacks {privilege}:" in words
        mariadb_server.execute(words.partition("grants it by: ")[2])
        await _through_all_revisions(url, poor)
    else:
        assert privilege in UNUSED_YET
    mariadb_server.execute(f"DROP USER {login}")


UNUSED_YET = {"DROP", "ALTER", "DELETE"}
"""What no upgrade of this release does: those of later ones may."""


async def _through_all_revisions(url: str, poor: str) -> None:
    await upgrade(poor)
    for revision in (1, 3):
        await go_back(url, revision=revision)
        await upgrade(poor)


async def test_a_login_without_any_privilege_on_the_database_is_named_with_the_statement(
    mariadb_server: MariaDB,
) -> None:
    url = mariadb_server.create_database()
    login, password = f"poor_{url[-12:]}", new_password()
    mariadb_server.execute(f"CREATE USER {login}@'%' IDENTIFIED BY '{password}'")
    with pytest.raises(StorePrivilegeMissing) as raised:
        await upgrade(url_of(url, login, password), timeout_s=1.0)
    mariadb_server.execute(str(raised.value).partition("grants it by: ")[2])
    await upgrade(url_of(url, login, password))
    mariadb_server.execute(f"DROP USER {login}")


TAKEN_AWAY = {
    "CREATE on schema public": "REVOKE CREATE ON SCHEMA public FROM {login}, PUBLIC",
    "USAGE, CREATE on schema public": "REVOKE ALL ON SCHEMA public FROM {login}, PUBLIC",
    "SELECT": "GRANT SELECT, INSERT, UPDATE, DELETE ON bso_schema_version TO {login};"
    "REVOKE SELECT ON bso_schema_version FROM {login}",
    "ownership of": "GRANT ALL ON ALL TABLES IN SCHEMA public TO {login}",
    "CONNECT": "REVOKE CONNECT ON DATABASE {name} FROM PUBLIC",
}


@pytest.mark.parametrize("lacks", TAKEN_AWAY)
async def test_an_upgrade_of_postgresql_names_the_privilege_that_it_lacks_and_the_statement_that_grants_it(
    postgresql_server: PostgreSQL, lacks: str
) -> None:
    url = postgresql_server.create_database()
    name, login, password = url.rpartition("/")[2], f"poor_{url[-12:]}", new_password()
    poor = url_of(url, login, password)

    def execute(sql: str) -> str:
        return postgresql_server.execute(f"\\connect {name}\n{sql}")

    execute(f"CREATE ROLE {login} LOGIN PASSWORD '{password}'; GRANT USAGE, CREATE ON SCHEMA public TO {login};")
    if lacks in ("SELECT", "ownership of"):
        await upgrade(url)
        execute("DROP INDEX ix_event_epoch; UPDATE bso_schema_version SET version_num = '0002'")
    execute(TAKEN_AWAY[lacks].format(login=login, name=name))
    for _ in range(10):
        try:
            await upgrade(poor, timeout_s=5.0)
            break
        except StorePrivilegeMissing as error:
            words = str(error)
            assert f"the login {login} lacks {lacks}" in words
            execute(words.partition("grants it by: ")[2])
            lacks = ""  # another one may be next
    assert await check(url) == ()


async def test_what_a_login_may_not_write_is_named(database: Database, open_at: OpenAt) -> None:
    await upgrade(database.url("bso_migrate"))
    await open_at(database.url("bso_worker")).require_rights()
    mysql, postgresql = "ON bso.* FROM 'bso_worker'@'%'", "ON ALL TABLES IN SCHEMA public FROM bso_workers"
    database.execute(f"REVOKE DELETE {mysql if database.is_mysql else postgresql};")
    store = open_at(database.url("bso_worker"))
    with pytest.raises(StorePrivilegeMissing, match="lacks a privilege"):
        await store.require_rights()
    assert await store.jobs() == []


@pytest.mark.parametrize("revision", ["job", "token"])
async def test_a_table_of_another_program_is_not_taken_for_one_of_ours(database: Database, revision: str) -> None:
    database.execute(f"CREATE TABLE {revision} (token_id varchar(12) PRIMARY KEY, secret text);")
    with pytest.raises(Misconfigured, match=f"there is a table {revision} in this database that is not bso's .*secret"):
        await upgrade(database.admin_url)
    assert (await current(database.admin_url)).status.value != "current"
    database.execute(f"DROP TABLE {revision};")
    await upgrade(database.admin_url)
    assert await check(database.admin_url) == ()
