"""``bso dashboard``: pages about the jobs, in the user's own browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Thread
from typing import Annotated

import typer

from bso.credentials import without_passwords
from bso.domain.errors import Misconfigured
from bso_cli.options import UrlOption
from bso_cli.terminal import print_notice, print_result


def dashboard(
    url: UrlOption = None,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", help="Where to listen on 127.0.0.1; 0: a free port.")
    ] = 0,
    opens: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> None:
    """Look at the jobs in a browser: what is saved, what runs, and why each training had its batch size.

    Shows what trainings have recorded in the SQLite file of this user, or the jobs that a login of a broker may read
    (`--url amqp://...`). The pages move while a training runs, and change a job only where you confirm it. Ctrl-C ends
    them. A team has the same pages at its gateway (`bso serve`), under /ui.

    Exit codes: 0 ended by a signal, 1 crashed, 2 misconfigured.
    """
    try:
        from bso_gateway.serve import run_dashboard
        from bso_gateway.settings import dashboard_settings
    except ImportError as error:
        raise Misconfigured(
            f"pages need {error.name}, which is not installed: pip install 'bso-optimizer[web]'"
        ) from error
    settings = dashboard_settings(os.environ, url=url, port=port)
    print_notice(f"looking at {without_passwords(settings.url)}")
    is_first = True

    def show(address: str) -> None:
        nonlocal is_first
        print_result(f"{'The pages are at' if is_first else 'For another browser:'} {address}")
        if is_first and opens and _has_screen():
            Thread(target=_open, args=(address,), name="browser", daemon=True).start()
        elif is_first:
            print_notice("Open this address in a browser: its key lets one in. Ctrl-C ends the pages.")
        is_first = False

    raise typer.Exit(run_dashboard(settings, show=show))


def _has_screen() -> bool:
    """Whether a browser would have a window: one in this terminal would take it."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open(address: str) -> None:
    """Open an address in the user's browser, by way of a file: others see the arguments of programs (ps), and the key.

    The file, which is for this user alone, is left to the system's cleaning of temporary files: a browser that has to
    start first reads it late, and a used key opens nothing.
    """
    with NamedTemporaryFile("w", prefix="bso-", suffix=".html", delete=False, encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={address}">')
    if not webbrowser.open(Path(file.name).as_uri()):
        print_notice("no browser was found here: open the address by hand")
