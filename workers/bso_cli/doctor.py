"""``bso doctor``: what is wrong with this installation, and what to do about it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from bso.credentials import setting
from bso.domain.errors import Misconfigured
from bso.domain.quantities import counted
from bso_cli.options import DatabaseOption, JsonOption, UrlOption, here
from bso_cli.refusals import FAILURE, sentence_of
from bso_cli.terminal import HANG, print_json, print_result, styled

if TYPE_CHECKING:
    from bso_cli.findings import Finding
    from bso_cli.settings import Places

_MARKS = {"ok": "[green]✓[/]", "note": "[yellow]·[/]", "broken": "[bold red]✗[/]"}


def doctor(
    url: UrlOption = None,
    database_url: DatabaseOption = None,
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", metavar="DIR", help="[default: BSO_STATE_DIR, else the user's own]")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check addresses, state directory, broker, workers, database, schema, versions and energy meters.

    It also says by how much the cost of an epoch varies from run to run, where jobs have shown that.

    Exits with 1 if anything is broken. It looks as a training would (BSO_URL), without that at the broker of workers
    (BSO_AMQP_URL), and at the database where BSO_DATABASE_URL names one.
    """
    findings = _findings(url, database_url, state_dir)
    broken = [finding for finding in findings if finding.health.value == "broken"]
    if as_json:
        print_json({"is_healthy": not broken, "findings": findings})
    else:
        _show(findings)
        conclusion = f"[red]{counted(len(broken), 'thing')} broken.[/]" if broken else "[green]Everything works.[/]"
        print_result(styled(conclusion))
    raise typer.Exit(FAILURE if broken else 0)


def _findings(url: str | None, database_url: str | None, state_dir: Path | None) -> Sequence[Finding]:
    from bso_cli.checks import examine
    from bso_cli.findings import broken

    try:
        places = _at_the_broker(here(url=url, database_url=database_url, state_dir=state_dir))
    except Misconfigured as error:
        return [broken("settings", sentence_of(error), "correct the option or the environment variable")]
    return [*_misspelt(), *asyncio.run(examine(places))]


def _at_the_broker(places: Places) -> Places:
    """The same places with the workers' broker where nothing says what trainings talk to. Raises Misconfigured."""
    address = setting(os.environ, "BSO_AMQP_URL")
    if places.url is not None or address is None:
        return places
    from bso_broker.connection import BrokerAddress

    try:
        return replace(places, url=BrokerAddress(url=address).url)
    except Misconfigured as error:
        raise Misconfigured(f"BSO_AMQP_URL: {error}") from error


def _misspelt() -> list[Finding]:
    """Variables that look like settings of trainings, and, where they are installed, workers and gateways."""
    from bso_cli.findings import note
    from bso_client.settings import VARIABLES

    try:
        from bso_gateway.settings import PREFIX as OF_GATEWAYS
        from bso_gateway.settings import GatewaySettings
        from bso_workers.settings import PREFIX, WorkerSettings, misspelt, variables_of
    except ImportError:
        return []
    names = {
        *VARIABLES,
        *variables_of(WorkerSettings, prefix=PREFIX),
        *variables_of(GatewaySettings, prefix=OF_GATEWAYS),
    }
    return [
        note("settings", f"{name} is no setting: {meant} is") for name, meant in misspelt(os.environ, names).items()
    ]


def _show(findings: Sequence[Finding]) -> None:
    for finding in findings:
        mark = _MARKS[finding.health.value]
        print_result(styled(f"{mark} [bold]{finding.topic}[/]: {escape(finding.found)}"), hang=2)
        if finding.advice:
            print_result(f"  → {finding.advice}", hang=HANG)
