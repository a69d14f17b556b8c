"""Whether a signal came to this process alone, or also to the programs that it has started."""

from __future__ import annotations

import contextlib
import os
import subprocess
from types import TracebackType
from typing import Self

_WATCHING = "ulimit -c 0; exec cat"  # until its input ends; no signal that ends it leaves a core file
_ENDS_WITHIN_S = 5.0


class Witness:
    """A small process in this process' group: what ends it has reached the whole group.

    The terminal's Ctrl-C, ``timeout`` and ``kill -INT -GROUP`` signal all processes of the group, ``kill -INT PID``
    does not, and a process cannot tell from the signal alone. It ends with this process, however that ends.
    """

    def __init__(self) -> None:
        self._process = _start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end_of(process)

    def has_reached(self, pid: int, number: int) -> bool:
        """Whether the signal that this process has just got came to that one, too."""
        if not _is_in_this_group(pid):
            return False
        process, self._process = self._process, None
        if process is None:
            return is_in_foreground()
        end = _end_of(process)
        self._process = _start()
        return end == -number


def is_in_foreground() -> bool:
    """Whether this process belongs to the foreground of its terminal."""
    try:
        descriptor = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _is_in_this_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:
        return False


def _start() -> subprocess.Popen[bytes] | None:
    """The process; None where there is no shell."""
    nowhere = subprocess.DEVNULL
    with contextlib.suppress(OSError):
        return subprocess.Popen(["/bin/sh", "-c", _WATCHING], stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere)
    return None


def _end_of(process: subprocess.Popen[bytes]) -> int:
    """How it ended: with 0 now that its input ends, unless a signal came before."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        return process.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:  # stopped, perhaps
        process.kill()
        return process.wait()
