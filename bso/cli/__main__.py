"""``python -m bso.cli`` is the ``bso`` command."""

from __future__ import annotations

from bso.cli.main import app

app(prog_name="bso")
