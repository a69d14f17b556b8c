"""``bso replay verify``: whether the tables agree with the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.text import Text

from bso.domain.quantities import counted
from bso_cli.access import reading
from bso_cli.options import DatabaseOption, JsonOption, here
from bso_cli.progress import counting
from bso_cli.refusals import FAILURE, CommandRefused
from bso_cli.replaying.sources import FromOption, JobsArgument, job_ids, log_of, staged
from bso_cli.terminal import HANG, print_json, print_result, styled

if TYPE_CHECKING:
    from bso.replay.verification import JobCheck

COMMAND = "bso replay verify"


def verify(
    jobs: JobsArgument = None,
    source: FromOption = None,
    log_only: Annotated[
        bool, typer.Option("--log-only", help="Only check that each log is whole and can be folded; no tables.")
    ] = False,
    most: Annotated[
        int, typer.Option(min=1, metavar="N", help="Print at most so many differences per job; --json has all.")
    ] = 20,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fold the event log and compare it with the tables, row by row; every difference is named.

    Nothing is changed and nothing is locked; jobs may be in use meanwhile. Leases are no part of history. Where old
    events were pruned the check starts at the snapshot that pruning left; older rows are only counted.

    With --from the log is that of an export, and the tables are still the database's. With --from and --log-only no
    database is needed: that checks a backup.

    With --json one object per job on a line. Exit code 1 if anything differs, a log cannot be folded, or a job's policy
    is not installed here (its is_sound is null then).
    """
    is_sound = asyncio.run(_verify(jobs, source, database_url, log_only=log_only, most=most, as_json=as_json))
    if not is_sound:
        raise typer.Exit(FAILURE)


async def _verify(
    jobs: Sequence[str] | None,
    source: Path | None,
    database_url: str | None,
    *,
    log_only: bool,
    most: int,
    as_json: bool,
) -> bool:
    def show(verdict: JobCheck) -> None:
        if as_json:
            print_json(verdict_fields(verdict))
        elif not verdict.is_sound or jobs:
            print_verdict(verdict, most)

    checked = await checked_by(_verdicts(jobs, source, database_url, log_only=log_only), show)
    if source is not None and not checked.jobs:
        raise CommandRefused(f"{source} holds no event: there is nothing to check")
    if not as_json:
        with_what = "checked" if log_only else "compared with the tables"
        print_result(f"{checked.words} {with_what}: {checked.result}")
    return not checked.unsound


@dataclass(slots=True, kw_only=True)
class CheckedJobs:
    """What came of checking the logs of jobs. ``unsound`` are all that were not found sound, unchecked ones, too."""

    jobs: int = 0
    events: int = 0
    unsound: list[JobCheck] = field(default_factory=list)

    @property
    def words(self) -> str:
        """What was checked."""
        return f"{counted(self.jobs, 'job')} with {counted(self.events, 'event')}"

    @property
    def result(self) -> str:
        """What was found: how many are not sound, and how many could not be checked."""
        unchecked = sum(not verdict.is_checked for verdict in self.unsound)
        found = [f"{len(self.unsound) - unchecked} of them not sound"] if len(self.unsound) > unchecked else []
        if unchecked:
            found.append(f"{unchecked} of them not checked, since a policy is not installed here")
        return ", ".join(found) or "no differences"


async def checked_by(
    verdicts: AsyncGenerator[JobCheck, None], show: Callable[[JobCheck], None] = lambda _: None
) -> CheckedJobs:
    """Count verdicts as they come."""
    checked = CheckedJobs()
    async with aclosing(verdicts):  # before the loop ends, also where nobody reads any more what is shown
        with counting("comparing", "events") as counter:
            async for verdict in verdicts:
                counter(verdict.events)
                checked.jobs, checked.events = checked.jobs + 1, checked.events + verdict.events
                checked.unsound += [] if verdict.is_sound else [verdict]
                show(verdict)
    return checked


async def _verdicts(
    jobs: Sequence[str] | None, source: Path | None, database_url: str | None, *, log_only: bool
) -> AsyncGenerator[JobCheck, None]:
    from bso.replay.verification import verify as verify_job
    from bso.replay.verification import verify_against, verify_log

    if log_only:
        async with log_of(source, database_url, command=COMMAND) as log:
            async for job_id in job_ids(log, jobs):
                yield await verify_log(log, job_id)
        return
    async with reading(here(database_url=database_url).database(COMMAND)) as store:
        if source is None:
            async for job_id in job_ids(store, jobs):
                yield await verify_job(store, job_id)
            return
        async with staged(source) as log:
            async for job_id in job_ids(log, jobs):
                yield await verify_against(log, store, job_id)


def verdict_fields(verdict: JobCheck) -> dict[str, object]:
    """What came of a job's check, for JSON."""
    return {
        "job_id": verdict.job_id,
        "is_sound": verdict.is_sound if verdict.is_checked else None,
        "events": verdict.events,
        "trials": verdict.trials,
        "problem": verdict.problem,
        "differences": verdict.differences,
        "trials_before_log": verdict.trials_before_log,
        "power_profiles_before_log": verdict.profiles_before_log,
    }


def print_verdict(verdict: JobCheck, most: int) -> None:
    """Print what came of a job's check, at most so many differences."""
    mark = "[green]✓[/]" if verdict.is_sound else "[red]✗[/]" if verdict.is_checked else "[yellow]?[/]"
    found = f"{counted(verdict.events, 'event')}, {counted(verdict.trials, 'trial')}"
    if verdict.trials_before_log or verdict.profiles_before_log:
        rows = (counted(verdict.trials_before_log, "trial"), counted(verdict.profiles_before_log, "power profile"))
        found += f" (older than the log: {' and '.join(rows)})"
    print_result(styled(f"{mark} job {escape(verdict.job_id)}: {found}"))
    if verdict.problem is not None:
        print_result(Text(f"    {verdict.problem}"), hang=HANG)
    for difference in verdict.differences[:most]:
        print_result(Text(f"    {difference.sentence}"), hang=HANG)
    if len(verdict.differences) > most:
        print_result(f"    and {len(verdict.differences) - most} more: `bso replay verify --json` has all")
