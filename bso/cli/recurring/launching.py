"""One launch of a training program: follow it, pass signals on, and say for it how its trials ended if it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from bso.cli.foreground import Witness
from bso.cli.recurring.narration import Narration, SeenTrial
from bso.cli.recurring.processes import Orphan, Process, signing_in
from bso.domain.errors import Misconfigured
from bso.domain.trial import Outcome

LISTEN_S = 0.25
FORWARDED = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended. ``code`` is what a shell would say: 128 + the signal's number for one that was killed.

    None: it was launched by a driver that is gone, and nobody knows its exit code.
    """

    code: int | None
    stopped_by: signal.Signals | None = None

    @property
    def words(self) -> str:
        """The end in words."""
        return "ended unwatched" if self.code is None else end_in_words(self.code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where a program's output goes: into ``log``, and from there to ``shown`` while it runs (None: not shown).

    ``may_resume``: whether the next launch may go on with the trial that this one leaves.
    """

    log: Path
    sign_in: Path
    shown: BinaryIO | None
    may_resume: Callable[[], bool]


class Finish(Protocol):
    """Tells the optimizer that a trial was interrupted, and why; one that may be resumed is only suspended."""

    def __call__(self, trial: SeenTrial, reason: str, *, may_resume: bool) -> Awaitable[None]:
        """Do it; a failure is said, not raised."""
        ...


class Launcher:
    """Runs programs one after the other and listens to their trials.

    Without an Output, a program has this terminal, its standard output being the descriptor ``stdout`` if one is given.
    With one it writes to a file, so that it goes on if this process is killed.
    """

    def __init__(
        self,
        *,
        finish: Finish,
        on_news: Callable[[SeenTrial], None],
        grace_s: float = 30.0,
        stdout: int | None = None,
    ) -> None:
        self._finish = finish
        self._on_news = on_news
        self._grace_s = grace_s
        self._stdout = stdout

    async def run(
        self, command: Sequence[str], environment: Mapping[str, str], narration: Narration, output: Output | None = None
    ) -> Ended:
        """Launch a program and wait for its end. Raises Misconfigured where it cannot be launched.

        A signal is passed on to the program, which then has ``grace_s`` seconds before it is killed. Trials that it
        left open are finished as interrupted.
        """
        with signals() as arrived, Witness() as witness:
            process = await self._launch(
                command, {**environment, "BSO_TRIAL_LOG": str(narration.path.absolute())}, output
            )
            return await self._follow(process, arrived, witness, narration, output, offset=0)

    async def adopt(self, orphan: Orphan | None, narration: Narration, output: Output | None) -> Ended:
        """Wait for the end of a program that another process launched; None: it has ended already."""
        if orphan is None:
            await self._close_open_trials(narration, Ended(code=None), output)
            return Ended(code=None)
        offset = output.log.stat().st_size if output is not None and output.log.exists() else 0
        with signals() as arrived, Witness() as witness:
            return await self._follow(orphan, arrived, witness, narration, output, offset=offset)

    async def _follow(
        self,
        process: Process,
        arrived: asyncio.Queue[signal.Signals],
        witness: Witness,
        narration: Narration,
        output: Output | None,
        *,
        offset: int,
    ) -> Ended:
        shown = _Shown(output, offset)

        def listen() -> None:
            shown.copy()
            self._listen(narration)

        async with _listening(listen):
            code, stopped_by = await self._wait(process, arrived, witness)
        listen()
        ended = Ended(code=None if code is None else code if code >= 0 else 128 - code, stopped_by=stopped_by)
        await self._close_open_trials(narration, ended, output)
        return ended

    async def _launch(
        self, command: Sequence[str], environment: Mapping[str, str], output: Output | None
    ) -> asyncio.subprocess.Process:
        try:
            if output is None:
                return await asyncio.create_subprocess_exec(*command, env=environment, stdout=self._stdout)
            with output.log.open("ab") as log:
                return await asyncio.create_subprocess_exec(
                    *command,
                    env={"PYTHONUNBUFFERED": "1", **environment},  # a file is no terminal: Python would hold back lines
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    preexec_fn=signing_in(output.sign_in),
                )
        except FileNotFoundError as error:
            raise _missing(command[0]) from error
        except PermissionError as error:
            raise _not_allowed(command[0]) from error

    async def _wait(
        self, process: Process, arrived: asyncio.Queue[signal.Signals], witness: Witness
    ) -> tuple[int | None, signal.Signals | None]:
        end = asyncio.ensure_future(process.wait())
        stop = asyncio.ensure_future(arrived.get())
        await asyncio.wait({end, stop}, return_when=asyncio.FIRST_COMPLETED)
        if end.done():
            stop.cancel()
            return end.result(), None
        number = stop.result()
        _pass_on(process, number, witness)
        try:
            return await asyncio.wait_for(asyncio.shield(end), self._grace_s), number
        except TimeoutError:
            process.kill()
            return await end, number

    def _listen(self, narration: Narration) -> None:
        for trial in narration.listen():
            self._on_news(trial)

    async def give_up(self, narration: Narration) -> None:
        """Finish the trials for good that were left to be resumed: no launch will go on with them."""
        for trial in [trial for trial in narration.trials if trial.outcome is Outcome.INTERRUPTED]:
            await self._finish(trial, trial.outcome_reason, may_resume=False)

    async def _close_open_trials(self, narration: Narration, ended: Ended, output: Output | None) -> None:
        may_resume = output is not None and output.may_resume()
        for trial in [trial for trial in narration.trials if trial.is_open]:
            reason = f"the training {ended.words} without saying how it went"
            await self._finish(trial, reason, may_resume=may_resume)
            self._on_news(narration.close(trial, Outcome.INTERRUPTED, reason))


class _Shown:
    """Copies what is new in a log to a stream."""

    def __init__(self, output: Output | None, offset: int) -> None:
        self._output = output
        self._offset = offset

    def copy(self) -> None:
        """Copy what was written since the last time. A stream that nobody reads any more is left alone."""
        if self._output is None or self._output.shown is None:
            return
        with self._output.log.open("rb") as log:
            log.seek(self._offset)
            new = log.read()
        self._offset += len(new)
        if new:
            with contextlib.suppress(BrokenPipeError):
                self._output.shown.write(new)
                self._output.shown.flush()


def require_program(command: Sequence[str]) -> None:
    """Raise Misconfigured where the first word of a command names no program that may be run."""
    name = command[0]
    if shutil.which(name) is None:
        raise _not_allowed(name) if os.sep in name and Path(name).exists() else _missing(name)


def _missing(program: str) -> Misconfigured:
    return Misconfigured(f"there is no program {program!r}: give the command as you would type it")


def _not_allowed(program: str) -> Misconfigured:
    return Misconfigured(f"{program!r} may not be run (Permission denied): did you mean python?")


def end_in_words(code: int) -> str:
    """What an exit code as a shell has it says."""
    if code > 128:
        with contextlib.suppress(ValueError):
            name = signal.Signals(code - 128).name
            hint = " (killed, perhaps for want of memory)" if name == "SIGKILL" else ""
            return f"was ended by {name}{hint}"
    return f"ended with exit code {code}"


def _pass_on(process: Process, number: signal.Signals, witness: Witness) -> None:
    """Signal the program, unless it has got the signal already: Ctrl-C goes to everything in the foreground."""
    if witness.has_reached(process.pid, number):
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


@contextlib.contextmanager
def signals() -> Iterator[asyncio.Queue[signal.Signals]]:
    """The signals that ask this process to stop, as they arrive; they do nothing else meanwhile.

    One that is ignored stays so: nohup ignores SIGHUP, a shell's background jobs SIGINT.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[signal.Signals] = asyncio.Queue()
    with contextlib.ExitStack() as stack:
        for number in FORWARDED:
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            with contextlib.suppress(NotImplementedError):  # where the platform's loop knows no signals
                loop.add_signal_handler(number, arrived.put_nowait, number)
                stack.callback(loop.remove_signal_handler, number)
        yield arrived


@contextlib.asynccontextmanager
async def _listening(listen: Callable[[], None]) -> AsyncIterator[None]:
    async def again_and_again() -> None:
        while True:
            await asyncio.sleep(LISTEN_S)
            listen()

    task = asyncio.create_task(again_and_again())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
