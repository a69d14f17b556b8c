"""``python -m bso_workers``: a worker with its settings from the environment."""

from __future__ import annotations

import os
import sys

from bso.guarded_stream import guard_outputs
from bso_workers.bootstrap import run_worker
from bso_workers.errors import InvalidSettings
from bso_workers.settings import read_settings


def main() -> int:
    """Run a worker and return its exit code."""
    guard_outputs()
    try:
        settings = read_settings(os.environ)
    except InvalidSettings as error:
        sys.stderr.write(f"bso worker: {error}\n")
        return 2
    return run_worker(settings)


if __name__ == "__main__":
    sys.exit(main())
