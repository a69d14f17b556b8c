"""``bso dead-letters``: the commands that no worker could handle, for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.text import Text

from bso.domain.quantities import NOTHING, counted, moment
from bso_cli.options import BrokerOption, JsonOption, YesOption, operators_broker
from bso_cli.refusals import CommandGroup, CommandRefused
from bso_cli.terminal import HANG, confirm, print_answer, print_json, print_notice, print_result

if TYPE_CHECKING:
    from bso_broker.dead_letters import DeadLetters

app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Look at commands that no worker could handle; send them again."
)

R = TypeVar("R")


@app.command("list")
def list_letters(
    limit: Annotated[int, typer.Option(min=1, max=10000, help="The most letters to list, the oldest first.")] = 100,
    url: BrokerOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the oldest dead letters and leave them where they are."""
    letters = _with_letters(url, lambda box: box.peek(limit=limit))
    if as_json:
        print_json(
            [
                {
                    "message_id": letter.message_id,
                    "died_at": letter.died_at,
                    "user_id": letter.user_id,
                    "reason": letter.reason,
                    "body": letter.body.decode(errors="replace"),
                    "discarded_bytes": letter.discarded_bytes,
                }
                for letter in letters
            ]
        )
        return
    for letter in letters:
        line = f"{letter.message_id or NOTHING}  {moment(letter.died_at)}  {letter.user_id or NOTHING}  {letter.reason}"
        print_result(Text(line), hang=HANG)
    if not letters:
        print_notice("no dead letters")


@app.command()
def requeue(
    message_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[MESSAGE_ID]...", help="Only these.", show_default=False)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    url: BrokerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters to the workers again. Harmless: a command's id keeps it from being carried out twice."""
    if all_ == bool(message_ids):
        raise typer.BadParameter("give message ids, as `bso dead-letters list` shows them, or --all")
    wanted = None if all_ else frozenset(message_ids or ())
    sent = _with_letters(url, lambda box: box.requeue(wanted))
    if wanted and sent < len(wanted):
        missed = f"{len(wanted) - sent} of {counted(len(wanted), 'id')} named no dead letter with a body"
        raise CommandRefused(f"{missed}, {sent} sent again; `bso dead-letters list` shows those that are there")
    print_answer({"requeued": sent}, f"{counted(sent, 'dead letter')} sent again", as_json=as_json)


@app.command()
def purge(
    yes: YesOption = False,
    url: BrokerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete all dead letters for good."""
    if not yes:
        confirm("Delete all dead letters for good?")
    purged = _with_letters(url, lambda box: box.purge())
    print_answer({"purged": purged}, f"{counted(purged, 'dead letter')} deleted", as_json=as_json)


@app.command()
def counts(url: BrokerOption = None, as_json: JsonOption = False) -> None:
    """Count waiting commands, dead letters, and commands that expired within a day."""
    found = _with_letters(url, lambda box: box.counts())
    print_answer(
        found, f"commands {found.commands}, dead letters {found.dead_letters}, expired {found.expired}", as_json=as_json
    )


def _with_letters(url: str | None, act: Callable[[DeadLetters], Awaitable[R]]) -> R:
    from bso_broker.rabbit import RabbitBroker

    address = operators_broker(url, what="dead letters")

    async def run() -> R:
        async with RabbitBroker(address) as broker, broker.dead_letters() as letters:
            return await act(letters)

    return asyncio.run(run())
