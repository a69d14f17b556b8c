"""``bso journal``: what trainings could not deliver, and keep on this machine."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from bso.domain.quantities import counted
from bso_cli.options import JsonOption, UrlOption, YesOption, here
from bso_cli.progress import counting
from bso_cli.refusals import FAILURE, CommandGroup, CommandRefused
from bso_cli.terminal import HANG, confirm, print_answer, print_json, print_notice, print_result

if TYPE_CHECKING:
    from bso_client.delivery.flush import Flushed
    from bso_client.delivery.journal import Destination
    from bso_client.delivery.left_behind import JournalContents

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="List the commands that trainings on this machine could not deliver, and deliver them by hand.",
)

_PATIENCE_S, _BRIEF_S = 60.0, 2.0

StateDirOption = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        metavar="DIR",
        help="The state directory of the trainings. [default: BSO_STATE_DIR, else the user's own]",
        show_default=False,
    ),
]
JobsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[JOB]...", help="Only these jobs.", show_default=False)
]


@app.command("list")
def list_entries(state_dir: StateDirOption = None, as_json: JsonOption = False) -> None:
    """List what is kept, by address, login and job, and what the optimizer has refused."""
    from bso_client.delivery.left_behind import contents

    found = contents(here(state_dir=state_dir).state_dir)
    if as_json:
        print_json([_fields(one) for one in found])
        return
    for one in found:
        print_result(Text(_line(one)), hang=HANG)
        for reason, number in Counter(record["reason"] for record in one.set_aside).items():
            latest = max(record["set_aside_at"] for record in one.set_aside if record["reason"] == reason)
            print_result(Text(f"  set aside {latest}: {counted(number, 'command')}: {reason}"), hang=HANG)
    if not found:
        print_notice("nothing is kept: everything was delivered")
        return
    if any(one.letters for one in found):
        print_notice(
            "the next training of a job delivers its commands, and so does `bso journal flush` with their address "
            "(BSO_URL, --url)"
        )
    print_notice("`bso journal drop JOB` deletes what is kept or set aside")


@app.command()
def flush(
    jobs: JobsArgument = None,
    url: UrlOption = None,
    state_dir: StateDirOption = None,
    timeout: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for each answer.")] = _PATIENCE_S,
    as_json: JsonOption = False,
) -> None:
    """Deliver what ended trainings have kept for this address and login. Harmless: nothing is recorded twice.

    The next training of a job does the same before it begins. What the optimizer refuses, that of a deleted job for
    example, is set aside with the reason. Exits with 1 where something was set aside, or could not be delivered.
    """
    from bso_client.delivery.journal import destination_of

    logging.getLogger("bso").setLevel(logging.ERROR)
    places = here(url=url, state_dir=state_dir)
    destination = destination_of(places.optimizer_url)
    kept = _chosen(places.state_dir, jobs, None)
    chosen = _chosen(places.state_dir, jobs, destination)
    waiting = sum(len(one.letters) for one in chosen)
    if waiting and not as_json:
        words = f"{counted(waiting, 'command')} for {destination.address}: waiting up to {timeout:g} s for each answer"
        print_notice(words)
    done = asyncio.run(_flushed(places.optimizer_url, chosen, timeout_s=timeout))
    delivered, set_aside = sum(one.delivered for one in done), sum(one.set_aside for one in done)
    obstacles = sorted({str(one.obstacle) for one in done if one.obstacle is not None})
    if as_json:
        print_json({"delivered": delivered, "set_aside": set_aside, "obstacles": obstacles})
    else:
        print_result(f"{counted(delivered, 'command')} delivered, {set_aside} refused and set aside")
        for words in obstacles:
            print_notice(words)
        if (left := waiting - delivered - set_aside) and obstacles:
            print_notice(f"still to be delivered: {counted(left, 'command')}")
        if set_aside:
            print_notice("`bso journal list` shows why")
        for words in _of_others(kept, destination):
            print_notice(words)
    if obstacles or set_aside:
        raise typer.Exit(FAILURE)


@app.command()
def drop(
    jobs: JobsArgument = None,
    all_: Annotated[bool, typer.Option("--all", help="Those of all jobs, addresses and logins.")] = False,
    yes: YesOption = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete what ended trainings have kept, and what was set aside, for good: the optimizer never learns of it."""
    from bso_client.delivery.left_behind import drop as dropped_from

    if all_ == bool(jobs):
        raise typer.BadParameter("give jobs, as `bso journal list` shows them, or --all")
    chosen = _chosen(here(state_dir=state_dir).state_dir, jobs, None)
    number = sum(len(one.letters) + len(one.set_aside) for one in chosen)
    if not yes:
        confirm(f"Delete {counted(number, 'command')} for good?")
    dropped = sum(dropped_from(one.folder) for one in chosen)
    print_answer({"dropped": dropped}, f"{counted(dropped, 'command')} deleted", as_json=as_json)


def _of_others(found: Sequence[JournalContents], destination: Destination) -> Iterator[str]:
    """What to say of commands that are kept for other logins or addresses."""
    counts = Counter[tuple[str, str]]()
    for one in found:
        if one.destination != destination:
            counts[one.destination.address, one.destination.login] += len(one.letters)
    for (address, login), number in sorted((+counts).items()):
        if address == destination.address:
            whose, who = f"login {login or '(none)'}", "only that login delivers them"
        else:
            whose, who = f"{address}{f' as {login}' if login else ''}", "they are delivered to that address only"
        yield f"{counted(number, 'command')} of {whose} stay: {who}, with BSO_URL or --url"


def _chosen(state_dir: Path, jobs: Sequence[str] | None, destination: Destination | None) -> Sequence[JournalContents]:
    """What is kept of these jobs, none: all, for a destination, None: any. Raises CommandRefused for an unknown job."""
    from bso_client.delivery.left_behind import contents

    found = contents(state_dir)
    missing = sorted(set(jobs or ()) - {one.job_id for one in found})
    if missing:
        raise CommandRefused(
            f"nothing is kept of job {', '.join(missing)} here; `bso journal list` shows what there is"
        )
    return [
        one
        for one in found
        if (not jobs or one.job_id in jobs) and (destination is None or one.destination == destination)
    ]


async def _flushed(url: str, chosen: Sequence[JournalContents], *, timeout_s: float) -> Sequence[Flushed]:
    from bso_client.delivery.flush import flush as deliver
    from bso_client.delivery.journal_file import files_in
    from bso_client.transports import open_transport

    if not any(files_in(one.folder) for one in chosen):
        return []
    transport = open_transport(url)
    await transport.start()
    try:
        with counting("delivering", "commands") as counter:
            done: list[Flushed] = []
            for one in chosen:
                done.append(await deliver(one.folder, transport, timeout_s=timeout_s, progress=lambda: counter(1)))
                if done[-1].obstacle is not None:  # which the other jobs may meet, too
                    timeout_s = min(timeout_s, _BRIEF_S)
            return done
    finally:
        await transport.close()


def _line(one: JournalContents) -> str:
    login = f" as {one.destination.login}" if one.destination.login else ""
    since = f", the oldest of {one.letters[0].kept_at}" if one.letters else ""
    held = "; a running training holds some of them" if one.is_held else ""
    trainings = len({kept.training for kept in one.letters})
    return (
        f"{one.job_id} at {one.destination.address}{login}: {counted(len(one.letters), 'command')} of "
        f"{counted(trainings, 'training')}{since}{held}"
    )


def _fields(one: JournalContents) -> dict[str, Any]:
    return {
        "job_id": one.job_id,
        "address": one.destination.address,
        "login": one.destination.login,
        "commands": len(one.letters),
        "trainings": len({kept.training for kept in one.letters}),
        "oldest": one.letters[0].kept_at if one.letters else None,
        "is_held": one.is_held,
        "set_aside": [{"reason": record["reason"], "at": record["set_aside_at"]} for record in one.set_aside],
        "folder": str(one.folder),
    }
