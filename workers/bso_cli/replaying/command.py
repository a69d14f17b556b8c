"""``bso replay`` and its commands."""

from __future__ import annotations

import typer

from bso_cli.refusals import CommandGroup
from bso_cli.replaying import moving
from bso_cli.replaying.publishing import publish
from bso_cli.replaying.verifying import verify
from bso_cli.replaying.what_if import what_if

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Check recorded history against the tables, back it up, move it, publish it again, and ask what if.",
)

app.command()(verify)
app.command()(moving.export)
app.command("import")(moving.import_)
app.command()(moving.rebuild)
app.command()(publish)
app.command()(what_if)
