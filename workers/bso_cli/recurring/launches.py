"""One launch of a training program: follow it, and finish its trials where it could not do so itself."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from bso.domain.commands import FinishTrial, Request
from bso.domain.errors import BsoError
from bso.domain.trial import Outcome
from bso_cli.access import call
from bso_cli.programs import Program
from bso_cli.recurring.trials import SeenTrial
from bso_cli.terminal import print_notice

_LOOK_S = 0.25


def launch(
    command: Sequence[str],
    options: Mapping[str, Any],
    *,
    log: Path | None,
    shown: BinaryIO | None,
    grace_s: float,
    look: Callable[[], None],
) -> tuple[int, signal.Signals | None]:
    """Run a program to its end; its exit code as a shell has it, and the signal to this process that stopped it.

    ``options`` are Popen's. With a ``log`` it prints into it, and from there to ``shown`` (None: nowhere); it goes on
    printing there if this process is killed. ``look`` is called again and again meanwhile. Asked to end by a signal, it
    has ``grace_s`` seconds before it is killed. Raises Misconfigured if it cannot start.
    """
    with contextlib.ExitStack() as stack:
        copy: Callable[[], None] = lambda: None  # noqa: E731
        if log is not None:
            into = stack.enter_context(log.open("ab"))
            copy = stack.enter_context(_copying(log, shown))
            # A file is no terminal: Python would hold back lines.
            environment = {"PYTHONUNBUFFERED": "1", **options["env"]}
            options = {**options, "env": environment, "stdout": into, "stderr": subprocess.STDOUT}
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
        return code, program.received


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
        asyncio.run(call(url, Request(command_id=str(uuid.uuid4()), job_id=trial.job_id, command=command)))
    except BsoError as error:
        print_notice(f"trial {trial.trial_number} could not be finished ({error}); its lease will lapse instead")
