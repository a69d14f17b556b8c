"""The ``bso`` command."""

from __future__ import annotations

from typing import Annotated

import typer

from bso_cli import (
    dashboard,
    dead_letters,
    doctor,
    events,
    jobs,
    journal,
    migrate,
    monitor,
    recur,
    report,
    restored,
    serve,
    tokens,
    worker,
)
from bso_cli.demo import command as demo
from bso_cli.importing.command import app as importing
from bso_cli.refusals import Commands
from bso_cli.replaying.command import app as replay
from bso_cli.simulating.command import app as simulate

app = typer.Typer(
    name="bso",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,  # it breaks lines anywhere, also within a password
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 75 a training asks to be launched again. "
    "Environment: BSO_URL, BSO_DATABASE_URL, BSO_STATE_DIR, BSO_JOB_ID, BSO_RECURRENCE_ID, "
    "BSO_ENERGY, BSO_POWERCAP_DIR.",
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        from bso_optimizer import DISTRIBUTION

        typer.echo(version(DISTRIBUTION))
        raise typer.Exit


@app.callback()
def bso(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Find the batch size at which a recurring training job costs least energy and time."""


app.command("demo")(demo.demo)
app.command("recur")(recur.recur)
app.add_typer(jobs.app, name="jobs")
app.command("report")(report.report)
app.add_typer(events.app, name="events")
app.add_typer(journal.app, name="journal")
app.command("dashboard")(dashboard.dashboard)
app.command("monitor")(monitor.monitor)
app.add_typer(simulate, name="simulate")
app.command("serve", rich_help_panel="Operation")(serve.serve)
app.add_typer(tokens.app, name="tokens", rich_help_panel="Operation")
app.command("worker", rich_help_panel="Operation")(worker.worker)
app.command("migrate", rich_help_panel="Operation")(migrate.migrate)
app.command("restored", rich_help_panel="Operation")(restored.restored)
app.add_typer(replay, name="replay", rich_help_panel="Operation")
app.add_typer(importing, name="import", rich_help_panel="Operation")
app.add_typer(dead_letters.app, name="dead-letters", rich_help_panel="Operation")
app.command("doctor", rich_help_panel="Operation")(doctor.doctor)
