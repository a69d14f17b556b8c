from datetime import UTC, datetime
from pathlib import Path

from bso.storage import open_store, statements
from bso.storage.dialects import dialect_named
from bso_migrations import upgrade

_LAST_TWO = ("first_2", "last_2", "first_3", "last_3")


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
    hot = (statements.locked_jobs, statements.recollection, statements.free_jobs)
    for build in hot:
        assert build(mysql) is build(mysql)
        assert build(mysql) is not build(sqlite)


def test_marking_events_as_published_takes_a_few_statements_and_ranges_where_ids_follow_one_another() -> None:
    mysql = dialect_named("mysql")
    three, ends = statements.published(mysql, [9, 1, 2, 3, 6, 7])
    assert ends == {"first_0": 1, "last_0": 3, "first_1": 6, "last_1": 7, **dict.fromkeys(_LAST_TWO, 9)}
    assert statements.published(mysql, [1, 3, 5, 7])[0] is three, "as many ranges as the next power of two"
    assert statements.published(mysql, range(10**6))[1] == {"first_0": 0, "last_0": 10**6 - 1}
    assert statements.published(mysql, range(0, 100, 2))[1] == {"event_ids": [*range(0, 100, 2)]}
