"""One launch of a training program: follow it, and finish its trials where it could not do so itself."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bso.domain.commands import FinishTrial, Request
from bso.domain.errors import BsoError
from bso.domain.trial import Outcome
from bso_cli.programs import Program
from bso_cli.recurring.trials import SeenTrial
from bso_cli.terminal import print_notice

_LOOK_S = 0.25
_FINISH_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended. ``code`` is that of a shell; None: nobody saw it end. ``stopped_by``: what asked it to."""

    code: int | None
    stopped_by: signal.Signals | None = None

    @property
    def words(self) -> str:
        """The end in words."""
        if self.code is None:
            return "ended while no bso recur ran"
        if self.code > 128:
            with contextlib.suppress(ValueError):
                name = signal.Signals(self.code - 128).name
                hint = " (killed, perhaps because memory ran out)" if name == "SIGKILL" else ""
                return f"was ended by {name}{hint}"
        return f"ended with exit code {self.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where a program prints to. With a ``log``: into it, and from there to ``shown`` (None: nowhere).

    It goes on printing there if this process is killed, and keeps the file descriptor ``lock`` open meanwhile. Without
    a log it has this terminal, its standard output being the file descriptor ``stdout`` if one is given.
    """

    log: Path | None = None
    shown: BinaryIO | None = None
    lock: int | None = None
    stdout: int | None = None


def launch(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: Output,
    *,
    grace_s: float,
    look: Callable[[], None],
) -> Ended:
    """Run a program to its end; ``look`` is called again and again meanwhile. Raises Misconfigured if it cannot start.

    Asked to end by a signal, it has ``grace_s`` seconds before it is killed.
    """
    with contextlib.ExitStack() as stack:
        options: dict[str, object] = {"env": environment, "stdout": output.stdout}
        copy: Callable[[], None] = lambda: None  # noqa: E731
        if output.log is not None:
            log = stack.enter_context(output.log.open("ab"))
            copy = stack.enter_context(_copying(output.log, output.shown))
            # A file is no terminal: Python would hold back lines.
            options = {"env": {"PYTHONUNBUFFERED": "1", **environment}, "stdout": log, "stderr": subprocess.STDOUT}
        if output.lock is not None:
            options["pass_fds"] = [output.lock]
        program = stack.enter_context(Program(command, **options))
        kill_at_s = None
        while (code := program.wait(_LOOK_S)) is None:
            copy()
            look()
            if program.received is not None:
                kill_at_s = kill_at_s or time.monotonic() + grace_s
                if time.monotonic() >= kill_at_s:
                    program.kill()
        copy()
        return Ended(code=code, stopped_by=program.received)


@contextlib.contextmanager
def _copying(log: Path, shown: BinaryIO | None) -> Iterator[Callable[[], None]]:
    """What copies to a stream what is new in a log. A stream that nobody reads any more is left alone."""
    with log.open("rb") as new:
        new.seek(0, 2)

        def copy() -> None:
            if shown is not None and (words := new.read()):
                with contextlib.suppress(BrokenPipeError):
                    shown.write(words)
                    shown.flush()

        yield copy


def finish_as_interrupted(url: str, trial: SeenTrial, reason: str, *, may_resume: bool) -> None:
    """Finish the trial of a dead training, or suspend it. Where that fails a notice says that its lease will lapse."""
    command = FinishTrial(
        trial_number=trial.trial_number,
        trial_id=trial.trial_id,
        outcome=Outcome.INTERRUPTED,
        reason=reason,
        may_resume=may_resume,
    )
    try:
        asyncio.run(_send(url, Request(command_id=str(uuid.uuid4()), job_id=trial.job_id, command=command)))
    except BsoError as error:
        print_notice(f"trial {trial.trial_number} could not be finished ({error}); its lease will lapse instead")


async def _send(url: str, request: Request) -> None:
    from bso_client.transports import open_transport

    transport = open_transport(url)
    try:
        await transport.start()
        await transport.call(request, timeout_s=_FINISH_TIMEOUT_S)
    finally:
        await transport.close()
