"""Processes: which boot of the machine they belong to, and how helper processes of this package are started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The kernel's name for this boot, the same in all containers of the machine; empty where it does not say."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


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
