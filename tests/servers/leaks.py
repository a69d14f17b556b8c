"""Passwords of the private servers in what tests and their programs print, log and write: there must be none.

The passwords begin with UNMISTAKABLE, so nothing has to know them. ``printed`` takes what a test has read from pipes
of a program; what pytest captures and the files in a test's own folder are looked at anyway.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tools.private_servers import UNMISTAKABLE
from tools.private_servers.server import descendants

_AS_BYTES = re.compile(rb"canary(?:/|%2f|\\+/|\\u002f)[\w.~%-]*", re.IGNORECASE)
assert UNMISTAKABLE == "canary/"
_MAY_HOLD = re.compile(r"(_url|\.sql)$|^(secrets|mysql_password)$")
"""Names of files and folders that are there to hold passwords."""
_LARGEST = 50_000_000  # bytes; beyond it are databases' own files
_printed: list[str] = []


def printed(*texts: str | None) -> None:
    """Note what a program has printed, to be searched when the test is over."""
    _printed.extend(text for text in texts if text)


def leaked(text: str | bytes) -> str | None:
    """The first password in a text, raw or percent-encoded; None: there is none."""
    found = _AS_BYTES.search(text.encode(errors="replace") if isinstance(text, str) else text)
    return None if found is None else found[0].decode(errors="replace")


def leaks_in_arguments() -> Iterator[str]:
    """Where passwords are in the arguments of this process' descendants, which everybody on the machine can see."""
    for pid in descendants(os.getpid()):
        with suppress(OSError):  # it has ended meanwhile
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if found := leaked(line):
                yield f"{found} in the arguments of a process: {line.decode(errors='replace')!r}"


def leaks_of(item: pytest.Item, report: pytest.TestReport) -> Iterator[str]:
    """Where passwords are in what a test has left, one sentence each."""
    for heading, text in report.sections:
        if found := leaked(text):
            yield f"{found} in {heading}"
    for text in _printed:
        if found := leaked(text):
            yield f"{found} in what a program printed: {text[-2000:]}"
    _printed.clear()
    folder = (getattr(item, "funcargs", None) or {}).get("tmp_path")
    for path in _files(folder) if isinstance(folder, Path) else ():
        if found := leaked(path.read_bytes()):
            yield f"{found} in the file {path}"


def _files(folder: Path) -> Iterator[Path]:
    """The files of a test that are no secrets themselves."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(map(_MAY_HOLD.search, parts)) or path.is_symlink() or not path.is_file():
            continue
        if path.stat().st_size <= _LARGEST:
            yield path
