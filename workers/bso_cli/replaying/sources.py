"""Where ``bso replay`` reads recorded events from: a database, or an export file laid out in a log of its own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from bso_cli.access import reading
from bso_cli.options import here
from bso_cli.progress import counting

if TYPE_CHECKING:
    from bso.storage.store import SqlStore

STANDARD_INPUT = Path("-")

FromOption = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="Read the events from this export instead of the database; - is standard input.",
        show_default=False,
    ),
]
JobsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="JOB", help="Only these jobs. [default: all]", show_default=False)
]


@asynccontextmanager
async def log_of(file: Path | None, database_url: str | None, *, command: str) -> AsyncIterator[SqlStore]:
    """A store whose log is that of a file where one is given, else of the database."""
    if file is not None:
        async with staged(file) as store:
            yield store
        return
    async with reading(here(database_url=database_url).database(command)) as store:
        yield store


@asynccontextmanager
async def staged(file: Path) -> AsyncIterator[SqlStore]:
    """The events of an export file in a temporary SQLite log, which holds nothing else. Raises BadExport, OSError."""
    from bso.replay.export_file import stage
    from bso.storage import open_store
    from bso_migrations import upgrade

    with tempfile.TemporaryDirectory(prefix="bso-replay-") as folder, _opened(file) as lines:
        url = f"sqlite:///{folder}/log.sqlite"
        await upgrade(url)
        store = open_store(url)
        try:
            name = "standard input" if file == STANDARD_INPUT else str(file)
            with counting(f"reading {name}", "lines") as counter:
                await stage(lines, store, name=name, progress=counter)
            yield store
        finally:
            await store.close()


async def job_ids(store: SqlStore, wanted: Sequence[str] | None) -> AsyncIterator[str]:
    """The jobs that were asked for, else all of which the store holds anything."""
    for job_id in dict.fromkeys(wanted or ()):
        yield job_id
    after = ""
    while not wanted and (page := await store.job_ids(after=after)):
        for job_id in page:
            yield job_id
        after = page[-1]


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    if file == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    with file.open("rb") as stream:
        yield stream
