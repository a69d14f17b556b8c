"""Runs a command in this terminal, as if it had been typed here: signals reach it, and its exit code comes back."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Sequence
from types import FrameType

from bso.cli.foreground import Witness
from bso.domain.errors import Misconfigured

_FORWARDED = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


def run_command(command: Sequence[str], *, stdout: int | None = None) -> int:
    """Run it to its end; its exit code as a shell has it (128 + n after signal n). Raises Misconfigured.

    Signals to this process are passed on, save those that came to both: Ctrl-C goes to everything in the foreground.
    One that is ignored stays so.
    """
    running: list[subprocess.Popen[bytes]] = []
    with Witness() as witness, _forwarding(running, witness):
        try:
            running.append(subprocess.Popen(command, stdout=stdout))
        except FileNotFoundError as error:
            raise Misconfigured(f"there is no program {command[0]!r}: give the command as you would type it") from error
        except PermissionError as error:
            raise Misconfigured(f"{command[0]!r} may not be run ({error.strerror}): did you mean python?") from error
        code = running[0].wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _forwarding(running: Sequence[subprocess.Popen[bytes]], witness: Witness) -> Iterator[None]:
    def pass_on(number: int, _frame: FrameType | None) -> None:
        for process in running:
            if not witness.has_reached(process.pid, number):
                process.send_signal(number)

    handled = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
