"""``bso import zeus``: jobs and trials of Zeus' batch size server become jobs of ours."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from bso.credentials import setting
from bso.domain.errors import Misconfigured
from bso.domain.quantities import counted, listed
from bso_cli.access import writing
from bso_cli.options import DatabaseOption, JsonOption, here
from bso_cli.progress import counting
from bso_cli.refusals import FAILURE, CommandGroup, CommandRefused
from bso_cli.terminal import print_json, print_notice, print_result, styled

if TYPE_CHECKING:
    from bso.storage.store import SqlStore
    from bso_cli.importing.past import Past, TakenOver
    from bso_cli.importing.zeus_database import ZeusRows

_VARIABLE = "ZEUS_BSO_DATABASE_URL"

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Take over what another optimizer has found out: its jobs and trials become recorded ones here.",
)


@app.callback()
def _import() -> None:
    """With a callback the group stays one, although it has one command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What is to be taken over, and how. ``jobs``: only these, None: all."""

    jobs: frozenset[str] | None
    policy: str | None
    is_strict: bool
    owner: str | None
    is_dry_run: bool
    as_json: bool


@app.command()
def zeus(
    zeus_database_url: Annotated[
        str | None,
        typer.Argument(
            metavar="ZEUS_DATABASE_URL",
            help="The database of Zeus' server, as the server has it: sqlite+aiosqlite:////path/to/zeus.db, "
            "mysql+asyncmy://user@host/Zeus; with its password rather in ZEUS_BSO_DATABASE_URL or "
            "ZEUS_BSO_DATABASE_URL_FILE, as others see arguments (ps). [default: ZEUS_BSO_DATABASE_URL]",
            show_default=False,
        ),
    ] = None,
    job: Annotated[
        list[str] | None,
        typer.Option("--job", metavar="JOB", help="Only this job; may be repeated. [default: all]", show_default=False),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="The policy of jobs that are new here: curve, or pruning_thompson for Zeus' own rules. [default: the "
            "gateway's BSO_GATEWAY_ZEUS_POLICY, else the default policy]",
            show_default=False,
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Register jobs as `bso serve --zeus-strict` does, with Zeus' rules."),
    ] = False,
    owner: Annotated[
        str | None,
        typer.Option(
            metavar="LOGIN", help="The owner of jobs that are new here. [default: nobody]", show_default=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; list what would be taken over.")] = False,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take jobs and trials over from the database of Zeus' batch size server (zeus 0.16), which is only read.

    Each job keeps its job_id, and is registered as the gateway would register it: Zeus' clients go on with it at once
    (`bso serve`). Trials are recorded with the times at which they ran; those that still run are left out. What
    is there already is skipped: start it again after an interruption, or later for trials that have ended since.

    Zeus' server has the times of its own time zone: run this in the same one (TZ).

    A job that bso cannot have is left out, with the reason; the others are taken over. A job that was deleted here is
    taken over anew only with --job. With --json one object per job on a line. Exit code 1 if any job was left out.
    """
    address = zeus_database_url or setting(os.environ, _VARIABLE)
    if not address:
        raise Misconfigured(f"name the database of Zeus' server: as the argument, or in {_VARIABLE}")
    wanted = _Wanted(
        jobs=frozenset(job) if job else None,
        policy=_policy(policy or setting(os.environ, "BSO_GATEWAY_ZEUS_POLICY"), is_strict=strict),
        is_strict=strict,
        owner=_owner(owner),
        is_dry_run=dry_run,
        as_json=as_json,
    )
    target = here(database_url=database_url).database("bso import zeus")
    if not asyncio.run(_import_all(address, target, wanted)):
        raise typer.Exit(FAILURE)


def _policy(name: str | None, *, is_strict: bool) -> str | None:
    from bso.domain.policies import is_policy_name, policy_names
    from bso_gateway.settings import ZEUS_POLICY

    if name is not None and not is_policy_name(name):
        raise typer.BadParameter(f"{name!r} is no name of a policy; known are {', '.join(policy_names())}")
    if is_strict and name not in (None, ZEUS_POLICY):
        raise typer.BadParameter(f"--strict needs the policy {ZEUS_POLICY}, got {name}")
    return ZEUS_POLICY if is_strict else name


def _owner(login: str | None) -> str | None:
    from bso.domain.identifiers import login_problem

    if login is not None and (problem := login_problem(login)) is not None:
        raise typer.BadParameter(f"--owner {problem}")
    return login


async def _import_all(address: str, target: str, wanted: _Wanted) -> bool:
    """Take over what is wanted; whether no job was left out."""
    from bso_cli.importing.zeus_database import read_zeus

    found = await read_zeus(address)
    chosen = [rows for rows in found if wanted.jobs is None or rows.job["job_id"] in wanted.jobs]
    known = {str(rows.job["job_id"]) for rows in found}
    if unknown := sorted((wanted.jobs or frozenset()) - known):
        raise CommandRefused(f"Zeus' database has no job {listed(unknown)}; it has {listed(sorted(known))}")
    async with writing(target) as store:
        return await _each(store, chosen, wanted)


async def _each(store: SqlStore, chosen: Sequence[ZeusRows], wanted: _Wanted) -> bool:
    from bso_cli.importing.past import Past
    from bso_cli.importing.zeus_history import NotTransferable

    past = Past(store, owner=wanted.owner)
    done: list[TakenOver] = []
    left_out = 0
    with counting("taking over", "trials") as counter:
        for rows in chosen:
            job_id = str(rows.job["job_id"])
            counter.now(f"taking over {job_id}")
            try:
                taken = await _one(past, store, rows, wanted, counter)
            except NotTransferable as why:
                left_out += 1
                _print_left_out(job_id, str(why), as_json=wanted.as_json)
                continue
            done.append(taken)
            _print_taken(taken, wanted)
    if not wanted.as_json:
        _print_sum(done, left_out, wanted)
    return not left_out


async def _one(
    past: Past, store: SqlStore, rows: ZeusRows, wanted: _Wanted, progress: Callable[[int], None]
) -> TakenOver:
    """Take one job over, or say what that would do. Raises NotTransferable."""
    from bso_cli.importing.zeus_history import NotTransferable, history_of

    history = history_of(rows, policy=wanted.policy, is_strict=wanted.is_strict)
    there = await store.summary(history.job_id)
    if there is not None and there.is_deleted and wanted.jobs is None:
        raise NotTransferable(f"it was deleted here; --job {history.job_id} takes it over anew")
    if wanted.is_dry_run:
        return await past.missing(history)
    return await past.record(history, progress=progress)


def _print_left_out(job_id: str, why: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"job_id": job_id, "problem": why})
    else:
        print_notice(styled(f"[red]✗[/] job {escape(job_id)} is left out: {escape(why)}"))


def _print_taken(taken: TakenOver, wanted: _Wanted) -> None:
    if wanted.as_json:
        print_json(taken)
        return
    new = "new here" if taken.is_new else f"{counted(taken.known, 'trial')} there already"
    words = f"job {taken.job_id}: {counted(taken.added, 'trial')} {_verb(wanted)}, {new}"
    if taken.running:
        words += f"; not ended at Zeus, and left out: trial {listed(taken.running)}"
    print_result(words)


def _print_sum(done: Sequence[TakenOver], left_out: int, wanted: _Wanted) -> None:
    added = sum(taken.added for taken in done)
    left = f"; {counted(left_out, 'job')} left out" if left_out else ""
    print_result(f"{counted(len(done), 'job')} with {counted(added, 'new trial')} {_verb(wanted)}{left}")


def _verb(wanted: _Wanted) -> str:
    return "would be taken over" if wanted.is_dry_run else "taken over"
