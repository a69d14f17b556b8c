"""``bso tokens``: with which clients of a gateway show who they are, for operators."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from bso.domain.quantities import NOTHING, moment
from bso.domain.rights import Right
from bso.domain.tokens import ALL_JOBS, Token, token_problems
from bso_cli.access import in_store
from bso_cli.moments import span_from
from bso_cli.options import DatabaseOption, JsonOption, here
from bso_cli.refusals import CommandGroup, CommandRefused
from bso_cli.tables import Table
from bso_cli.terminal import print_answer, print_block, print_json, print_notice

if TYPE_CHECKING:
    from bso.storage.store import SqlStore

app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Make and revoke the tokens of those who use `bso serve --tokens`."
)


def _token_id(given: str) -> str:
    """The id of a token, from it or from the token itself, which no error shows. Raises typer.BadParameter."""
    found = re.fullmatch(r"(?:bso_)?([0-9a-f]{12})(?:_.*)?", given.strip())
    if found is None:
        expected = (
            "expected the 12 digits (0-9, a-f) of a token's id, as `bso tokens list` shows them, or the token itself"
        )
        raise typer.BadParameter(expected, param_hint="TOKEN_ID")
    return found[1]


TokenArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOKEN_ID",
        help="As `bso tokens list` shows it, or the token itself.",
        show_default=False,
    ),
]


@app.command()
def create(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="In whose name it is used: jobs belong to it.", show_default=False)
    ],
    may: Annotated[
        str,
        typer.Option(
            metavar="RIGHT",
            help="The most that it is for: read, train or operate; each includes those before. Of several, separated "
            "by commas, the one counts that includes the others.",
        ),
    ] = Right.TRAIN.value,
    jobs: Annotated[str, typer.Option(metavar="PATTERN", help="Only for jobs like this, e.g. 'vision-*'.")] = ALL_JOBS,
    expires: Annotated[
        str | None, typer.Option(metavar="AGE", help="After how long: 12h, 90d, 52w.", show_default="never")
    ] = None,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it: this once, as only a digest of it is kept.

    Training scripts read it from BSO_TOKEN, or a file that BSO_TOKEN_FILE names; Zeus' clients have it as the password
    in the server's address: https://any:TOKEN@host. What owners, teams and grants allow holds beside it.
    """
    right = _right_of(may)
    if problems := token_problems(name, jobs):
        raise typer.BadParameter("; ".join(f"{field} {words}" for field, words in problems.items()))
    lasts = None if expires is None else span_from(expires, option="--expires")
    database = _database(database_url)
    if database.startswith("sqlite"):
        asyncio.run(_made(database))
    token, secret = in_store(database, lambda store: _created(store, user=name, right=right, jobs=jobs, lasts=lasts))
    _print_secret(database, token, secret, as_json=as_json)
    if not as_json:
        print_notice(f"token {token.token_id} of {name}: keep it now, it is not shown again")


@app.command("list")
def list_tokens(database_url: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """List all tokens: whose they are, what for, until when, and when they were used last, to the minute."""

    async def read(store: SqlStore) -> tuple[list[Token], datetime]:
        return list(await store.tokens.all()), await store.tokens.now()

    tokens, now = in_store(_database(database_url), read)
    if as_json:
        print_json([{**_fields(token), "problem": token.why_invalid(now)} for token in tokens])
        return
    if not tokens:
        print_notice("no tokens: `bso tokens create NAME` makes one")
        return
    table = Table("tokens", "token_id", "name", "may", "jobs", "expires", "last used", "state")
    for token in tokens:
        state = (token.why_invalid(now) or "valid").removeprefix(f"token {token.token_id} ")
        expires, used = (moment(each) if each else NOTHING for each in (token.expires_at, token.last_used_at))
        table.add_row(token.token_id, token.user, token.right.value, token.jobs, expires, used, state)
    print_block(table)


@app.command()
def revoke(token_id: TokenArgument, database_url: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Revoke a token: gateways refuse it within 30 seconds."""
    token_id = _token_id(token_id)

    async def change(store: SqlStore) -> Token:
        token = await _found(store, token_id)
        revoked = replace(token, revoked_at=token.revoked_at or await store.tokens.now())
        await store.tokens.change(revoked)
        return revoked

    token = in_store(_database(database_url), change)
    print_answer(_fields(token), f"token {token_id} of {token.user} is revoked", as_json=as_json)


@app.command()
def rotate(
    token_id: TokenArgument,
    overlap: Annotated[str, typer.Option(metavar="AGE", help="How long the old one stays valid: 12h, 7d.")] = "24h",
    expires: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="After how long the new one expires.", show_default="as long as the old one"),
    ] = None,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token like another one, which expires after the overlap."""
    token_id = _token_id(token_id)
    last = span_from(overlap, option="--overlap")
    lasts = None if expires is None else span_from(expires, option="--expires")

    async def change(store: SqlStore) -> tuple[Token, str, datetime]:
        old, now = await _found(store, token_id), await store.tokens.now()
        if (problem := old.why_invalid(now)) is not None:
            raise CommandRefused(f"{problem}: `bso tokens create {old.user}` makes another one")
        as_before = None if old.lifetime_s is None else timedelta(seconds=old.lifetime_s)
        token, secret = await _created(store, user=old.user, right=old.right, jobs=old.jobs, lasts=lasts or as_before)
        ends = now + last if old.expires_at is None else min(old.expires_at, now + last)
        await store.tokens.change(replace(old, expires_at=ends))
        return token, secret, ends

    database = _database(database_url)
    token, secret, ends = in_store(database, change)
    _print_secret(database, token, secret, as_json=as_json)
    if not as_json:
        print_notice(f"token {token.token_id} takes the place of {token_id}, which is valid until {moment(ends)}")


def _print_secret(database: str, token: Token, secret: str, *, as_json: bool) -> None:
    """Print a new token. Where that fails nobody has it: it is revoked."""
    try:
        print_answer({**_fields(token), "token": secret}, secret, as_json=as_json)
        sys.stdout.flush()
    except OSError:

        async def revoke(store: SqlStore) -> None:
            await store.tokens.change(replace(token, revoked_at=await store.tokens.now()))

        in_store(database, revoke)
        print_notice(f"token {token.token_id} could not be printed, and is revoked")
        raise


def _right_of(text: str) -> Right:
    """The one of the rights that somebody has typed that includes all others. Raises typer.BadParameter."""
    known = {right.value: right for right in Right}
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in known]:
        expected = f"expected {', '.join(known)}, or several of them, separated by commas"
        raise typer.BadParameter(f"{expected}; got {unknown[0]!r}", param_hint=["--may"])
    return max((known[name] for name in names), key=lambda right: len(right.included))


def _database(url: str | None) -> str:
    return here(database_url=url).database("bso tokens")


async def _made(database: str) -> None:
    """Make the file, or upgrade it, as a gateway does at its start."""
    from bso_client.transports.embedded import open_embedded

    await (await open_embedded(database)).close()


async def _created(
    store: SqlStore, *, user: str, right: Right, jobs: str, lasts: timedelta | None
) -> tuple[Token, str]:
    from bso.service.tokens import digest_of, new_secret

    token_id, secret = new_secret(os.urandom)
    now = await store.tokens.now()
    token = Token(
        token_id=token_id,
        user=user,
        right=right,
        jobs=jobs,
        created_at=now,
        lifetime_s=None if lasts is None else round(lasts.total_seconds()),
        expires_at=None if lasts is None else now + lasts,
    )
    await store.tokens.create(token, digest_of(secret))
    return token, secret


async def _found(store: SqlStore, token_id: str) -> Token:
    found = await store.tokens.find(token_id)
    if found is None:
        raise CommandRefused(f"there is no token {token_id}: `bso tokens list` shows those that there are")
    return found[0]


def _fields(token: Token) -> dict[str, object]:
    return {
        "token_id": token.token_id,
        "name": token.user,
        "may": token.right.value,
        "jobs": token.jobs,
        "created_at": token.created_at,
        "lifetime_s": token.lifetime_s,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
        "last_used_at": token.last_used_at,
    }
