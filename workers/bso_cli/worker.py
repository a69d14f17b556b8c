"""``bso worker``: decide commands from the broker, record them in the database."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from typing import Any

import typer

from bso.domain.errors import Misconfigured
from bso_cli.refusals import USAGE, complain
from bso_workers.settings import WorkerSettings

_DAY = 86400.0
_PANELS = (None, "Work", "Watching", "Times")
_WRITTEN = {"operators": "LOGINS", "teams": "NAMES", "quotas": "JSON"}
_METAVARS = {**_WRITTEN, "health_port": "PORT"}


def _parameters() -> Iterator[inspect.Parameter]:
    """An option for each setting, with its description and its default."""
    for name, setting in WorkerSettings.model_fields.items():
        kind: Any = str if name in _WRITTEN else setting.annotation
        option = name.replace("_", "-")
        default = f"BSO_{name.upper()}" if setting.is_required() else _in_words(setting.default)
        found = typer.Option(
            None,
            f"--{option}/--no-{option}" if kind is bool else f"--{option}",
            metavar=_METAVARS.get(name) or {float: "SECONDS", str: option.rpartition("-")[2].upper()}.get(kind),
            help=f"{setting.description} [{default}]",
            rich_help_panel=None if setting.is_required() else _panel(name, kind),
            show_default=False,
        )
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=found, annotation=kind | None)


def _place(option: inspect.Parameter) -> int:
    return _PANELS.index(option.default.rich_help_panel)


def _panel(name: str, kind: Any) -> str:
    if kind is float:
        return "Times"
    return "Watching" if name.startswith(("health_", "log_")) else "Work"


def _in_words(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, float):
        return f"{default / _DAY:g} days" if default >= _DAY else f"{default:g}"
    return str(default or "none")


def worker(**options: Any) -> None:
    """Decide commands from the broker and record them in the database, until SIGTERM.

    Start as many workers as you like: they share one queue, and any of them may be killed at any time. Each also
    publishes what another one recorded but could not publish, and suspends trials that send nothing any more.
    The schema must be there (`bso migrate`); exchanges and queues are declared by the worker itself.

    Every option can be given as an environment variable, BSO_ and its name in capitals (BSO_BATCH_LIMIT=64), or in a
    file that BSO_..._FILE names (BSO_DATABASE_URL_FILE=/run/secrets/database_url). Options win.

    Exit codes: 0 drained after a signal, 1 a part crashed, 2 misconfigured: a setting is missing or out of range, an
    address cannot be one, a port is taken.
    """
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


# typer reads the options from here.
worker.__signature__ = inspect.Signature(sorted(_parameters(), key=_place))  # type: ignore[attr-defined]  # functions may have one
