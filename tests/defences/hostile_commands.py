"""Runs commands of ``bso`` one after the other in one process: ``python -m tests.defences.hostile_commands PLAN``.

A plan is a list of ``{"words": [...], "environ": {...}}`` in a file. Before what each prints stands ``<<number``,
after it ``exit code>>``, each on a line of its own. One that goes on for minutes ends everything: it is a server, and
has no place here.
"""

import json
import os
import signal
import sys
from pathlib import Path

from bso_cli.__main__ import main as bso
from tests.defences.removals import REMOVALS, VARIABLE

_LONGEST_S = 240


def main() -> None:
    """Run the plan, without the defence that the environment names."""
    if VARIABLE in os.environ:
        REMOVALS[os.environ[VARIABLE]]()
    for number, step in enumerate(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))):
        os.environ.update(step["environ"])
        sys.argv = ["bso", *step["words"]]
        _say(f"<<{number}")
        signal.alarm(_LONGEST_S)
        code: object = 0
        try:
            bso()
        except SystemExit as end:
            code = end.code
        _say(f"{code or 0}>>")


def _say(words: str) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(1, f"\n{words}\n".encode())


if __name__ == "__main__":
    main()
