"""``bso replay export``, ``import`` and ``rebuild``: recorded history out of a database, and into one."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from bso.domain.errors import Rejected
from bso.domain.quantities import counted
from bso_cli.access import reading, writing
from bso_cli.exports import naming
from bso_cli.options import DatabaseOption, JsonOption, OutputOption, YesOption, here
from bso_cli.progress import counting
from bso_cli.refusals import FAILURE, CommandRefused
from bso_cli.replaying.sources import STANDARD_INPUT, FromOption, JobsArgument, job_ids, log_of, staged
from bso_cli.terminal import confirm, print_json, print_notice, print_result, styled

if TYPE_CHECKING:
    from bso.replay.rebuild import Rebuilt
    from bso.storage.store import SqlStore


def export(
    jobs: JobsArgument = None,
    output: OutputOption = None,
    source: FromOption = None,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export the event log, replies included, as JSON lines: one event a line, job by job.

    An export can be imported into any database, is the same from every database, and takes constant memory.
    A file appears under its name only when it is complete. With --from an export is sorted, freed of repeated lines,
    and narrowed to jobs.
    """
    done = asyncio.run(_export(jobs, output, source, database_url))
    if jobs and not done["events"]:
        raise CommandRefused(f"nothing is recorded of {', '.join(jobs)}; `bso jobs list` shows the jobs of a database")
    if as_json and output is not None:
        print_json(done)
    else:
        where = f" to {output}" if output else ""
        exported = f"{counted(done['events'], 'event')} of {counted(done['jobs'], 'job')} exported{where}"
        print_notice(exported)


async def _export(
    jobs: list[str] | None, output: Path | None, source: Path | None, database_url: str | None
) -> dict[str, int]:
    from bso.replay.export_file import export as export_job

    exported = events = 0
    async with log_of(source, database_url, command="bso replay export") as log:
        with counting("exporting", "events") as counter, _written(output) as stream:
            async for job_id in job_ids(log, jobs):
                counter.now(f"exporting {job_id}")
                count = await export_job(log, job_id, stream.write, progress=counter)
                exported, events = exported + (count > 0), events + count
    return {"jobs": exported, "events": events}


@contextmanager
def _written(output: Path | None) -> Iterator[IO[bytes]]:
    """A stream to standard output, or to a file that is there only when all went well."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if output.exists() and not output.is_file():  # a device, or a pipe
        with naming(output), output.open("wb") as stream:
            yield stream
        return
    output = output.resolve()  # a link stays one
    unfinished = output.with_name(f"{output.name}.unfinished")
    try:
        with naming(output), unfinished.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if output.exists():
            unfinished.chmod(stat.S_IMODE(output.stat().st_mode))
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The export; - is standard input.", show_default=False)],
    jobs: JobsArgument = None,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import an export into a database, and make its tables agree with the log.

    The whole file is checked before anything is written; an error names the line. Each job is one transaction, and
    events that are there already are skipped: an import that was broken off is simply started again. A job whose log
    holds something else is refused, the others are imported. Imported events are not published: `bso replay publish`
    does that.

    With --json one object per job on a line. Exit code 1 if any job was refused.
    """
    if file != STANDARD_INPUT and not file.exists():
        raise CommandRefused(f"there is no file {file}")
    database = here(database_url=database_url).database("bso replay import")
    _work(_both(staged(file), database), jobs, _brought, as_json=as_json)


def rebuild(
    jobs: JobsArgument = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="URL", help="Copy log and tables into this database instead.", show_default=False),
    ] = None,
    yes: YesOption = False,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the tables agree with the event log; `bso replay verify` shows beforehand what that changes.

    Only what differs is written, in one transaction per job that holds its lock. Rows that the log
    should have and does not have are deleted; rows older than a pruned log stay. Running trials keep their leases.

    With --to the log goes into another database, MySQL, MariaDB, PostgreSQL or SQLite, after `bso migrate` there.

    With --json one object per job on a line. Exit code 1 if the log of any job cannot be folded.
    """
    source = here(database_url=database_url).database("bso replay rebuild")
    if to is not None:
        _work(_both(reading(source), to), jobs, _brought, as_json=as_json)
        return
    if not yes:
        which = counted(len(jobs), "job") if jobs else "all jobs"
        confirm(f"Overwrite the tables of {which} where the log differs?")
    _work(_both(nullcontext(), source), jobs, _rebuilt_in_place, as_json=as_json)


async def _brought(log: SqlStore, store: SqlStore, job_id: str) -> Rebuilt:
    from bso.domain.decide import Rules
    from bso.replay.rebuild import bring

    return await bring(log, store, job_id, rules=Rules())


async def _rebuilt_in_place(_log: SqlStore, store: SqlStore, job_id: str) -> Rebuilt:
    from bso.domain.decide import Rules
    from bso.replay.rebuild import rebuild as rebuild_job

    return await rebuild_job(store, job_id, rules=Rules())


@asynccontextmanager
async def _both(
    log: AbstractAsyncContextManager[SqlStore | None], database: str
) -> AsyncIterator[tuple[SqlStore, SqlStore]]:
    """Where the log is, None: in the database itself, and the database."""
    async with writing(database) as store, log as elsewhere:
        yield elsewhere or store, store


def _work(
    stores: AbstractAsyncContextManager[tuple[SqlStore, SqlStore]],
    jobs: list[str] | None,
    work: Callable[[SqlStore, SqlStore, str], Awaitable[Rebuilt]],
    *,
    as_json: bool,
) -> None:
    """Do the work for each job of the first store, and report it. Raises typer.Exit if one was refused."""

    async def run() -> bool:
        async with stores as (log, store):
            return await _each(log, jobs, lambda job_id: work(log, store, job_id), as_json=as_json)

    if not asyncio.run(run()):
        raise typer.Exit(FAILURE)


async def _each(
    log: SqlStore, jobs: list[str] | None, work: Callable[[str], Awaitable[Rebuilt]], *, as_json: bool
) -> bool:
    """Do the work for each job, report what came of it, and return whether none was refused."""
    from bso.domain.policies import PolicyMissing
    from bso.schema.errors import StateTooNew

    events = added = rows = done = refused = 0
    with counting("rebuilding", "events") as counter:
        async for job_id in job_ids(log, jobs):
            counter.now(f"rebuilding {job_id}")
            try:
                result = await work(job_id)
            except (PolicyMissing, Rejected, StateTooNew) as error:
                refused += 1
                if as_json:
                    print_json({"job_id": job_id, "problem": str(error)})
                else:
                    print_notice(styled(f"[red]✗[/] job {escape(job_id)}: {escape(str(error))}"))
                continue
            counter(result.events)
            done, events = done + 1, events + result.events
            added, rows = added + result.added_events, rows + result.changed_rows
            if as_json:
                print_json(result)
            elif result.trials_before_log:
                ended = f"{counted(result.trials_before_log, 'trial')} ended before the log begins, and are not in it"
                print_notice(f"job {job_id}: {ended}")
    if not as_json:
        new = f"{counted(added, 'event')} added, {counted(rows, 'row')} written" if added or rows else "nothing to do"
        left = f"; {counted(refused, 'job')} refused" if refused else ""
        print_result(f"{counted(done, 'job')} with {counted(events, 'event')}: {new}{left}")
    return not refused
