"""``bso migrate``: create or upgrade the database schema."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated, Literal

import typer
from rich.text import Text

from bso.credentials import Data, setting
from bso_cli.options import JsonOption, here
from bso_cli.refusals import FAILURE
from bso_cli.terminal import HANG, print_json, print_notice, print_result


def migrate(
    database_url: Annotated[
        str | None,
        typer.Option(
            "--database-url",
            metavar="URL",
            help="The database, with a login that may change tables; with its password rather in a variable or its "
            "_FILE, as others see options (ps). [default: BSO_MIGRATE_DATABASE_URL, else as for other commands: "
            "BSO_DATABASE_URL ...]",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="How long to wait for the database to answer.")
    ] = 60.0,
    sql: Annotated[bool, typer.Option("--sql", help="Print the statements instead of running them.")] = False,
    dialect: Annotated[
        Literal["mysql", "mariadb", "postgresql", "sqlite"],
        typer.Option(metavar="NAME", help="Whose SQL --sql prints: mysql, mariadb, postgresql, sqlite."),
    ] = "mysql",
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 unless the schema is this program's.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create or upgrade the tables. Safe to run at any time, also several at once: one works, the others wait.

    With --sql it prints the statements for a database that this program may not change itself; no database is needed.
    """
    from bso_cli.access import naming_file

    if sql and (check or as_json):
        raise typer.BadParameter("--sql prints statements and looks at no database: leave --check and --json out")
    if sql:
        from bso_migrations import sql as statements

        sys.stdout.write(Data(statements(dialect)))
        sys.stdout.flush()
        return
    own = database_url or setting(os.environ, "BSO_MIGRATE_DATABASE_URL")
    database = here(database_url=own).database("bso migrate")
    with naming_file(database):
        asyncio.run(_check(database, as_json=as_json) if check else _upgrade(database, wait_s=wait, as_json=as_json))


async def _upgrade(database: str, *, wait_s: float, as_json: bool) -> None:
    from bso_migrations import upgrade

    state = await upgrade(database, timeout_s=wait_s, progress=print_notice if as_json else print_result)
    if as_json:
        print_json(state)


async def _check(database: str, *, as_json: bool) -> None:
    from bso.service.records import SchemaStatus
    from bso_cli.access import require_existing_file
    from bso_migrations import check, current

    require_existing_file(database)
    state = await current(database)
    is_current = state.status is SchemaStatus.CURRENT
    differences = await check(database) if is_current else ()
    if as_json:
        print_json({"schema": state, "differences": differences})
    else:
        print_result(f"the schema is {state.found or 'missing'}, this program expects {state.expected}")
        for difference in differences:
            print_result(Text(f"unexpected: {difference}"), hang=HANG)
    if not is_current or differences:
        raise typer.Exit(FAILURE)
