"""``bso restored``: workers go on after the database was restored from a backup."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from bso_cli.access import reading
from bso_cli.options import DatabaseOption, JsonOption, here
from bso_cli.refusals import FAILURE
from bso_cli.replaying.sources import job_ids
from bso_cli.replaying.verifying import CheckedJobs, checked_by, print_verdict, verdict_fields
from bso_cli.terminal import HANG, print_json, print_result

if TYPE_CHECKING:
    from bso.replay.verification import JobCheck

_MOST = 5  # differences printed of a job; `bso replay verify` prints more


def restored(
    unchecked: Annotated[
        bool,
        typer.Option(
            "--unchecked", help="Begin the epoch without comparing, for a damaged log that no backup can replace."
        ),
    ] = False,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let workers go on after the database was restored from a backup. Run it once the restore is complete.

    It stops workers that run, and compares the event log with the tables, as `bso replay verify` does. Where they agree
    it begins a new epoch of the log: events and event_ids from then on cannot be mistaken for those that the restore
    took away. Workers that had stopped then go on by themselves.

    Where the tables of a job differ from its log, it names the job and the command that repairs it, and exits with 1:
    workers stay stopped. Repair the jobs, and run it again.
    """
    has_begun = asyncio.run(_restored(database_url, is_checked=not unchecked, as_json=as_json))
    if not has_begun:
        raise typer.Exit(FAILURE)


async def _restored(database_url: str | None, *, is_checked: bool, as_json: bool) -> bool:
    from bso.replay.verification import verify
    from bso.service.readiness import require_schema

    async with reading(here(database_url=database_url).database("bso restored")) as store:
        await require_schema(store)
        await store.log_epochs.look(lambda _: "it is being checked")
        verdicts = (await verify(store, job_id) async for job_id in job_ids(store, None))
        checked = await checked_by(verdicts) if is_checked else CheckedJobs()
        if not as_json:
            _print(checked, is_checked=is_checked)
        begun = None if checked.unsound else await store.log_epochs.begin()
    if as_json:
        unsound = [{**verdict_fields(verdict), "remedy": _remedy(verdict)} for verdict in checked.unsound]
        number = None if begun is None else begun.number
        print_json({"log_epoch": number, "jobs": checked.jobs, "events": checked.events, "unsound": unsound})
    elif begun is not None:
        print_result(f"epoch {begun.number} of the log has begun: workers that had stopped go on by themselves")
    return begun is not None


def _print(checked: CheckedJobs, *, is_checked: bool) -> None:
    for verdict in checked.unsound:
        print_verdict(verdict, _MOST)
        print_result(Text(f"  → {_remedy(verdict)}"), hang=HANG)
    compared = f"{checked.words} compared with the tables"
    if checked.unsound:
        print_result(
            f"{compared}: {checked.result}. Workers stay stopped: do for these jobs what is said above, and run "
            "`bso restored` again"
        )
    elif is_checked:
        print_result(f"{compared}: no differences")


def _remedy(verdict: JobCheck) -> str:
    if verdict.problem is None:
        return shlex.join(["bso", "replay", "rebuild", verdict.job_id, "--yes"])
    if not verdict.is_checked:
        return "install its policy where you run `bso restored`: nothing else shows whether its history is whole"
    return (
        "its log is damaged, or a newer release has recorded events in it: use that release then, else restore another "
        "backup, or take the job from an export (`bso replay import`). "
        "`bso restored --unchecked` lets workers go on with the job by its rows: its history stays damaged, and "
        "nothing can be rebuilt from it"
    )
