"""``bso serve``: the optimizer over HTTP."""

from __future__ import annotations

import os
from typing import Any

import typer

from bso.domain.errors import Misconfigured
from bso_cli.options import with_settings
from bso_gateway.settings import PREFIX, GatewaySettings

_WRITTEN = {
    **dict.fromkeys(("names", "trusted_proxies"), "NAMES"),
    **dict.fromkeys(("tls_certificate", "tls_key"), "FILE"),
    "zeus_policy": "POLICY",
}


def serve(**options: Any) -> None:
    """Answer over HTTP, until SIGTERM: Zeus' clients, unchanged (server_url="http://localhost:8000"), trainings with
    BSO_URL=http://localhost:8000, and programs in any language (/v1, described by /openapi.json).

    Over a SQLite file (the default) this process decides by itself. With `--url amqp://...` the workers behind that
    broker decide, and any number of gateways may run; name their login in the workers' BSO_GATEWAYS.

    Every option can be given as an environment variable, BSO_GATEWAY_ and its name in capitals
    (BSO_GATEWAY_PORT=8000), the url as BSO_URL, or in a file that a variable with _FILE at its end names. Options win.

    Exit codes: 0 drained after a signal, 1 crashed, 2 misconfigured.
    """
    try:
        from bso_gateway.serve import run_gateway
        from bso_gateway.settings import read_settings
    except ImportError as error:
        raise Misconfigured(
            f"a gateway needs {error.name}, which is not installed: pip install 'bso-optimizer[web]'"
        ) from error
    raise typer.Exit(run_gateway(read_settings(os.environ, **options)))


with_settings(
    serve,
    GatewaySettings,
    prefix=PREFIX,
    written=_WRITTEN,
    panels={"log_": "Watching", "access_": "Watching"},
    url_default="BSO_URL, else a SQLite file in the state directory",
)
