"""``bso worker``: decide commands from the broker, record them in the database."""

from __future__ import annotations

import os
from typing import Any

import typer

from bso.domain.errors import Misconfigured
from bso_cli.options import with_settings
from bso_workers.settings import WorkerSettings

_WRITTEN = {"operators": "LOGINS", "teams": "NAMES", "gateways": "LOGINS", "quotas": "JSON"}


def worker(**options: Any) -> None:
    """Decide commands from the broker and record them in the database, until SIGTERM.

    Start as many workers as you like: they share one queue, and any of them may be killed at any time. Each also
    publishes what another one recorded but could not publish, and suspends trials that send nothing any more.
    The schema must be there (`bso migrate`); exchanges and queues are declared by the worker itself.

    Every option can be given as an environment variable, BSO_ and its name in capitals (BSO_BATCH_LIMIT=128), or in a
    file that BSO_..._FILE names (BSO_DATABASE_URL_FILE=/run/secrets/database_url). Options win.

    Exit codes: 0 drained after a signal, 1 a part crashed, 2 misconfigured: a setting is missing or out of range, an
    address cannot be one, a port is taken.
    """
    try:
        from bso_workers.bootstrap import run_worker
        from bso_workers.settings import read_settings
    except ImportError as error:
        raise Misconfigured(
            f"a worker needs {error.name}, which is not installed: pip install 'bso-optimizer[server,mysql]'"
        ) from error
    raise typer.Exit(run_worker(read_settings(os.environ, **options)))


with_settings(
    worker, WorkerSettings, prefix="BSO_", written=_WRITTEN, panels={"health_": "Watching", "log_": "Watching"}
)
