"""Programs that commands run in this terminal: signals reach them once; their exit codes are those of a shell."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from bso.domain.errors import Misconfigured

_FORWARDED = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)

_NO_REQUEST_TO_END = ("SIGUSR1", "SIGUSR2")
_WITNESS = ("/bin/sh", "-c", "ulimit -c 0; exec cat")  # until its input ends; no signal makes it leave a core file


class Program:
    """A running program. Signals to this process are passed on to it, save those that came to both.

    The terminal's Ctrl-C, ``timeout`` and ``kill -INT -GROUP`` signal a whole group, ``kill -INT PID`` does not, and a
    process cannot tell from the signal alone. A witness can: a small process in this group that does not survive it.
    A signal that is ignored stays so: nohup ignores SIGHUP, a shell's background jobs SIGINT. ``received`` is the first
    one that asked it to end; ``interrupts`` counts how often SIGINT came.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        self._command = command
        self._options = options
        self._process: subprocess.Popen[Any] | None = None
        self._before: dict[int, Any] = {}
        self.received: signal.Signals | None = None
        self.interrupts: int = 0

    def __enter__(self) -> Self:
        """Start it, as Popen does with these options. Raises Misconfigured where that cannot be."""
        self._witness = _start_witness()
        handled = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._pass_on) for number in handled}
        try:
            process: subprocess.Popen[Any] = subprocess.Popen(self._command, **self._options)
        except OSError as error:
            self.__exit__(None, None, None)
            raise _not_started(self._command[0], error) from error
        self._process = process
        if self.received is not None:
            process.send_signal(self.received)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        _end_of(self._witness)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit code: 128 + n where signal n ended it; None where it still runs after ``timeout_s``."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return code if code >= 0 else 128 - code

    def kill(self) -> None:
        """Kill it."""
        assert self._process is not None
        self._process.kill()

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if signal.Signals(number).name not in _NO_REQUEST_TO_END:
            self.received = self.received or signal.Signals(number)
        self.interrupts += number == signal.SIGINT
        witness, self._witness = self._witness, _start_witness()
        came_to_group = _end_of(witness) == -number
        if self._process is not None and not (came_to_group and _is_in_this_group(self._process.pid)):
            self._process.send_signal(number)


def _start_witness() -> subprocess.Popen[bytes]:
    return subprocess.Popen(_WITNESS, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _end_of(witness: subprocess.Popen[bytes]) -> int:
    """How it ended: with 0 now that its input ends, unless a signal came before."""
    witness.send_signal(signal.SIGCONT)  # it may have been stopped with its group
    witness.communicate()
    return witness.returncode


def _is_in_this_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:
        return False


def require_program(name: str) -> None:
    """Raise Misconfigured where this names no program that may be run."""
    if shutil.which(name) is None:
        is_there = os.sep in name and Path(name).exists()
        raise _not_started(name, PermissionError() if is_there else FileNotFoundError())


def _not_started(name: str, error: OSError) -> Misconfigured:
    if isinstance(error, FileNotFoundError):
        return Misconfigured(f"there is no program {name!r}: give the command as you would type it")
    return Misconfigured(f"{name!r} may not be run ({error.strerror or 'Permission denied'}): did you mean python?")
