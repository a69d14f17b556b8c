from datetime import UTC, datetime
from pathlib import Path

from bso.storage import open_store, statements
from bso.storage.dialects import dialect_named
from bso_migrations import upgrade


async def test_a_statement_that_is_built_once_reads_the_clock_each_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bso.sqlite"
    await upgrade(url)
    store = open_store(url)
    before = datetime.now(UTC)
    seen = []
    for _ in range(2):
        async with store.unit_of_work() as uow:
            seen.append((await uow.recollect({"00000000-0000-4000-8000-000000000001"})).now)
    await store.close()
    assert before <= seen[0] < seen[1] <= datetime.now(UTC)


def test_the_hot_queries_are_built_once_per_kind_of_database() -> None:
    mysql, sqlite = dialect_named("mysql"), dialect_named("sqlite")
    hot = (statements.locked_jobs, statements.recollection, statements.published)
    for build in hot:
        assert build(mysql) is build(mysql)
        assert build(mysql) is not build(sqlite)
