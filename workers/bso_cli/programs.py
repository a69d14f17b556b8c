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
from bso_cli.foreground import Witness

_FORWARDED = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)

_SAID_ONLY = ("SIGUSR1", "SIGUSR2")


class Program:
    """A running program. Signals to this process are passed on to it, save those that came to both.

    The terminal's Ctrl-C goes to everything in the foreground. A signal that is ignored stays so: nohup ignores SIGHUP,
    a shell's background jobs SIGINT. ``received`` is the first one that asked it to end.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        self._command = command
        self._options = options
        self._witness = Witness()
        self._process: subprocess.Popen[Any] | None = None
        self._before: dict[int, Any] = {}
        self.received: signal.Signals | None = None

    def __enter__(self) -> Self:
        """Start it, as Popen does with these options. Raises Misconfigured where that cannot be."""
        self._witness.__enter__()
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
        self._witness.__exit__(kind, error, traceback)

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
        if signal.Signals(number).name not in _SAID_ONLY:
            self.received = self.received or signal.Signals(number)
        if self._process is not None and not self._witness.has_reached(self._process.pid, number):
            self._process.send_signal(number)


def require_program(name: str) -> None:
    """Raise Misconfigured where this names no program that may be run."""
    if shutil.which(name) is None:
        is_there = os.sep in name and Path(name).exists()
        raise _not_started(name, PermissionError() if is_there else FileNotFoundError())


def _not_started(name: str, error: OSError) -> Misconfigured:
    if isinstance(error, FileNotFoundError):
        return Misconfigured(f"there is no program {name!r}: give the command as you would type it")
    return Misconfigured(f"{name!r} may not be run ({error.strerror or 'Permission denied'}): did you mean python?")
