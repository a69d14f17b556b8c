"""How helper processes of this package are started: with the import path of the script, and nothing in front of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

_PROGRAM = (
    "import importlib, json, sys; sys.path += [path for path in json.loads(sys.argv[1]) if path not in sys.path]; "
    "sys.exit(importlib.import_module(sys.argv[2]).main(sys.argv[3:]))"
)


def command_for(module: str, *arguments: str) -> list[str]:
    """The command that calls ``main(arguments)`` of a module, which is found wherever this process would find it.

    What a script has added to ``sys.path`` comes after the standard library, for which its own files must not stand in.
    """
    paths = json.dumps([str(Path(path).absolute()) for path in sys.path])
    return [sys.executable, "-P", "-c", _PROGRAM, paths, module, *arguments]
