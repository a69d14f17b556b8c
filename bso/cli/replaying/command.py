"""``bso replay`` and its commands."""

from __future__ import annotations

import typer

from bso.cli.refusals import Group
from bso.cli.replaying import moving
from bso.cli.replaying.publishing import publish
from bso.cli.replaying.verifying import verify
from bso.cli.replaying.what_if import what_if

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="Check recorded history against the tables, back it up, move it, publish it again, and ask what if.",
)

app.command()(verify)
app.command()(moving.export)
app.command("import")(moving.import_)
app.command()(moving.rebuild)
app.command()(publish)
app.command()(what_if)
