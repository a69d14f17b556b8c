"""A login with few jobs among thousands of others finds them by few statements."""

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from bso.domain.commands import GrantJob, RegisterJob
from bso.domain.rights import Reader, Right
from bso.service.engine import Engine
from bso.storage import SqlStore
from bso.storage.dialects import dialect_named
from bso.storage.readable_jobs import readable_job_ids
from bso.storage.tables import job
from bso_migrations import upgrade
from tests.contract.storage.job_requests import SPEC, ask, request
from tests.contract.storage.test_readable_jobs import listed
from tests.integration.storage.conftest import OpenAt
from tools.private_servers import MariaDB

MANY = 3000
"""Jobs of others."""


async def many_of_others(store: SqlStore) -> None:
    """Thousands of jobs that belong to Alice, every tenth granted to Carol."""
    engine = Engine(store)
    await ask(engine, request(RegisterJob(spec=SPEC), job_id="first", user="alice"))
    await ask(engine, request(GrantJob(login="carol", right=Right.READ), job_id="first"))
    async with store.engine.begin() as connection:
        [first] = (await connection.execute(sa.select(job))).mappings().all()
        shared, own = dict(first), {**first, "granted_to": "", "state": first["state"].replace("carol", "nobody")}
        rows = [{**(own if n % 10 else shared), "job_id": f"m-{n:05}"} for n in range(MANY)]
        for start in range(0, MANY, 500):
            await connection.execute(sa.insert(job), rows[start : start + 500])


async def test_one_job_among_thousands_of_others_is_found_by_few_statements(migrated_url: str, open_at: OpenAt) -> None:
    store = open_at(migrated_url)
    await many_of_others(store)
    engine = Engine(store)
    await ask(engine, request(RegisterJob(spec=SPEC), job_id="z-own", user="bob"))
    await ask(engine, request(RegisterJob(spec=SPEC), job_id="n-shared", user="alice"))
    await ask(engine, request(GrantJob(login="bob", right=Right.READ), job_id="n-shared"))
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT"):
            statements.append(statement)

    event.listen(store.engine.sync_engine, "before_cursor_execute", note)
    assert await listed(store, "bob") == (["n-shared", "z-own"], 1)
    assert len(statements) == 4, "jobs, their last and their active trials, and which of them are in trouble"
    assert await listed(store, "dora") == ([], 1)
    found, pages = await listed(store, "carol")
    assert (len(found), pages) == (MANY // 10 + 1, MANY // 100 + 1)


@pytest.mark.parametrize("login", ["bob", "vision-ann"])
async def test_jobs_of_others_that_are_granted_to_nobody_are_not_even_read(
    mariadb_server: MariaDB, open_at: OpenAt, login: str
) -> None:
    url = mariadb_server.create_database()
    await upgrade(url)
    store = open_at(url)
    await many_of_others(store)
    reader = Reader(login=login, teams=frozenset({"vision", "vision-lab"}))
    ids = readable_job_ids(dialect_named("mysql"), reader, after="", limit=10)
    async with store.engine.connect() as connection:
        await connection.execute(sa.text("FLUSH STATUS"))
        assert (await connection.execute(ids)).all() == []
        counts = (await connection.execute(sa.text("SHOW SESSION STATUS LIKE 'Handler_read_next'"))).all()
        [(_, rows_read)] = counts
    assert int(rows_read) <= MANY // 10 + 10, "those that are granted to somebody"
