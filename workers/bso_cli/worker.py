"""``bso worker``: decide commands from the broker, record them in the database."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

import typer

from bso.domain.errors import Misconfigured
from bso_cli.refusals import USAGE, complain

WORK = "Work"
WATCH = "Watching"
TIMES = "Times"


def _seconds(help_: str, panel: str = TIMES) -> Any:
    return typer.Option(metavar="SECONDS", help=help_, rich_help_panel=panel, show_default=False)


def worker(
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The database: mysql://user:password@host/bso, or postgresql://... [BSO_DATABASE_URL]",
            show_default=False,
        ),
    ] = None,
    amqp_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The broker: amqp(s)://user:password@host:5672/virtual-host. [BSO_AMQP_URL, else BSO_URL]",
            show_default=False,
        ),
    ] = None,
    batch_limit: Annotated[
        int | None,
        typer.Option(
            help="How many commands one transaction decides at most. [32]", rich_help_panel=WORK, show_default=False
        ),
    ] = None,
    prefetch: Annotated[
        int | None,
        typer.Option(
            help="How many commands the broker hands over ahead of their decision. [128]",
            rich_help_panel=WORK,
            show_default=False,
        ),
    ] = None,
    max_batch_sizes: Annotated[
        int | None,
        typer.Option(
            help="The most batch sizes that a job may have: with more, choices take longer. [64]",
            rich_help_panel=WORK,
            show_default=False,
        ),
    ] = None,
    operators: Annotated[
        str | None,
        typer.Option(
            metavar="LOGINS",
            help="Logins, separated by commas, that may change jobs they do not own. [none]",
            rich_help_panel=WORK,
            show_default=False,
        ),
    ] = None,
    require_user_id: Annotated[
        bool | None,
        typer.Option(
            "--require-user-id/--no-require-user-id",
            help="Refuse commands that do not name their login: right where logins are separate. [no]",
            rich_help_panel=WORK,
            show_default=False,
        ),
    ] = None,
    health_host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="Where /livez, /readyz and /metrics are served. [127.0.0.1]",
            rich_help_panel=WATCH,
            show_default=False,
        ),
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="Their port; 0 takes a free one and logs it. [8080]",
            rich_help_panel=WATCH,
            show_default=False,
        ),
    ] = None,
    log_format: Annotated[
        Literal["auto", "console", "json"] | None,
        typer.Option(
            help="console for people, json for programs; auto: console on a terminal, else json. [auto]",
            rich_help_panel=WATCH,
            show_default=False,
        ),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option(help="debug also logs every command. [info]", rich_help_panel=WATCH, show_default=False),
    ] = None,
    lease_s: Annotated[float | None, _seconds("How long a trial may stay silent before it is suspended. [600]")] = None,
    resume_window_s: Annotated[
        float | None, _seconds("How long a suspended trial may come back before it ends as interrupted. [7 days]")
    ] = None,
    relay_interval_s: Annotated[
        float | None, _seconds("How often to look for events that nobody published. [5]")
    ] = None,
    relay_age_s: Annotated[float | None, _seconds("How old an unpublished event is before it is relayed. [10]")] = None,
    reaper_interval_s: Annotated[float | None, _seconds("How often to look for lapsed leases. [15]")] = None,
    check_interval_s: Annotated[float | None, _seconds("How often to look whether the database is there. [5]")] = None,
    database_timeout_s: Annotated[
        float | None, _seconds("How long one transaction may take before the database counts as away. [20]")
    ] = None,
    park_limit_s: Annotated[
        float | None,
        _seconds(
            "How long a command may wait for its job to get out of trouble before it becomes a dead letter. [7 days]"
        ),
    ] = None,
    drain_timeout_s: Annotated[
        float | None, _seconds("How long to go on with commands already taken, after SIGTERM. [25]")
    ] = None,
) -> None:
    """Decide commands from the broker and record them in the database, until SIGTERM.

    Start as many workers as you like: they share one queue, and any of them may be killed at any time. Each also
    publishes what another one recorded but could not publish, and suspends trials that send nothing any more.
    The schema must be there (`bso migrate`); exchanges and queues are declared by the worker itself.

    Every option can be given as an environment variable, BSO_ and its name in capitals (BSO_BATCH_LIMIT=64), or in a
    file that BSO_..._FILE names (BSO_DATABASE_URL_FILE=/run/secrets/database_url). Options win.

    Exit codes: 0 drained after a signal, 1 a part crashed, 2 misconfigured: a setting is missing or out of range, an
    address cannot be one, a port is taken.
    """
    options = dict(locals())  # exactly the parameters, named as the settings are
    try:
        from bso_workers.bootstrap import run_worker
        from bso_workers.errors import InvalidSettings
        from bso_workers.settings import read_settings
    except ImportError as error:
        raise Misconfigured(
            f"a worker needs {error.name}, which is not installed: pip install 'bso-optimizer[server,mysql]'"
        ) from error
    try:
        settings = read_settings(os.environ, **options)
    except InvalidSettings as error:
        complain(error)
        raise typer.Exit(USAGE) from error
    raise typer.Exit(run_worker(settings))
