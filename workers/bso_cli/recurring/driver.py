"""Runs recurrences: launches until there is a model, and keeps each step before it is taken."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO

from rich.markup import escape
from rich.rule import Rule

from bso.credentials import handed_on
from bso.domain.commands import FinishTrial, Request
from bso.domain.errors import BsoError
from bso.domain.quantities import counted, joules, seconds
from bso.domain.trial import Outcome
from bso_cli.access import call
from bso_cli.options import here
from bso_cli.programs import Program
from bso_cli.recurring.recurrences import RecurringRun, RunFolder, ScheduledRun, counted_once, signal_of
from bso_cli.recurring.trials import SeenTrial, TrialLog
from bso_cli.terminal import HANG, onlookers, print_notice, styled
from bso_client import RELAUNCH
from bso_client.energy.meters import ENERGY_ASSUMED, NOTICE_GIVEN

if TYPE_CHECKING:
    from bso_cli.recur import RecurOptions

_RULE = 80  # columns at most; a file has no width
_LOOK_S = 0.25
_LAST_WORDS_S = 2.0
_UNSEEN = "ended after bso recur was killed; its exit code is unknown"


class RunDriver:
    """Drives a run in its folder, from where it stands.

    ``lock`` is the file descriptor of the folder's lock, which programs inherit. Without --log-dir the folder is this
    run's alone, and programs print on this terminal.
    """

    def __init__(self, *, run: RecurringRun, folder: RunFolder, lock: int, options: RecurOptions) -> None:
        self.run = run
        self._folder = folder
        self._lock = lock
        self._options = options
        self._url = here(url=options.url).optimizer_url

    def drive(self) -> int:
        """Run what is left. Returns 128 + n after signal n, else the first failed command's exit code, else 0."""
        code = 0
        while (recurrence := self._next()) is not None:
            recurrence = self._recur(recurrence)
            self._print_end(recurrence)
            if recurrence.stopped_by is not None:
                return 128 + recurrence.stopped_by
            code = code or recurrence.exit_code or 0
            if recurrence.ended_at is None:
                return code
        return code

    def _next(self) -> ScheduledRun | None:
        """The recurrence to work on; None: all are done."""
        known = self.run.recurrences
        last = known[-1] if known and known[-1].ended_at is None else None
        if last is None:
            if len(known) >= self.run.count:
                return None
            last = ScheduledRun(number=len(known) + 1, recurrence_id=str(uuid.uuid4()), began_at=datetime.now(UTC))
            self._folder.of(last).mkdir(exist_ok=True)
            self._folder.trial_log(last).touch()  # its trainings only append
            self._save(last)
        title = f"recurrence {last.number} of {self.run.count}{', resumed' if last.launches else ''}"
        onlookers().print(Rule(title, align="left", style="dim"), width=min(onlookers().width, _RULE))
        return last

    def _recur(self, recurrence: ScheduledRun) -> ScheduledRun:
        """Work on a recurrence until it is over, or has to be left open."""
        log = TrialLog(self._folder.trial_log(recurrence))
        log.read_new()
        if recurrence.is_running:  # it was left by a process that was killed, and the lock shows that it has ended
            recurrence = self._settled(replace(recurrence, is_running=False), log, end=_UNSEEN)
            if recurrence.has_model:
                return self._ended(recurrence)
        for left in reversed(range(self._options.launches)):
            recurrence = self._launched(recurrence, log)
            if recurrence.stopped_by is not None or not (left and _asks_for_another(recurrence)):
                break
        if recurrence.stopped_by is not None:
            is_over = recurrence.has_model and not recurrence.exit_code
        else:
            is_over = not recurrence.exit_code or self._options.keep_going
        return self._ended(recurrence) if is_over else recurrence

    def _launched(self, recurrence: ScheduledRun, log: TrialLog) -> ScheduledRun:
        """With one launch more, noted before it begins, and its trials. Raises Misconfigured if it cannot start.

        With --log-dir it prints into a file, and from there to this terminal: it goes on if this process is killed.
        """
        launches = recurrence.launches + 1
        recurrence = replace(recurrence, launches=launches, is_running=True, exit_code=None, stopped_by=None)
        options: dict[str, Any] = {"env": self._environment(recurrence), "pass_fds": (self._lock,)}
        self._save(recurrence)
        shown = sys.stderr if self._options.as_json else sys.stdout
        with contextlib.ExitStack() as stack:
            printed = None
            if self._options.log_dir is None:
                options |= {"stdout": shown}
            else:
                path = self._folder.of(recurrence) / f"launch-{launches}.log"
                options |= {"stdout": stack.enter_context(path.open("wb")), "stderr": subprocess.STDOUT}
                printed = stack.enter_context(path.open("rb"))
            program = stack.enter_context(Program(self.run.command, **options))
            code, end = self._followed(program, log, printed, shown.buffer)
        done = replace(recurrence, is_running=False, exit_code=code, stopped_by=program.received)
        return self._settled(done, log, end=end)

    def _followed(self, program: Program, log: TrialLog, printed: BinaryIO | None, shown: BinaryIO) -> tuple[int, str]:
        """The exit code of a program and its end in words; its trials and output are shown meanwhile.

        One that does not stop is killed.
        """
        grace = None
        killed = ""
        while True:
            code = program.wait(_LOOK_S)
            if printed is not None:
                with contextlib.suppress(BrokenPipeError):  # nobody reads it any more
                    shutil.copyfileobj(printed, shown)
                    shown.flush()
            _print_news(log)
            if code is not None:
                return code, killed if killed and code == 128 + signal.SIGKILL else _end_of(code)
            if program.received is not None:
                grace = grace or _Grace(program, program.received, self._options.grace)
                killed = killed or grace.over
                if killed:
                    program.kill()

    def _environment(self, recurrence: ScheduledRun) -> Mapping[str, str]:
        folder, known = self._folder, self.run.recurrences
        own: dict[str, object] = {
            "BSO_RECURRENCE_ID": recurrence.recurrence_id,
            "BSO_RECURRENCE_NUMBER": recurrence.number,
            "BSO_LAUNCH_NUMBER": recurrence.launches,
            "BSO_TRIAL_LOG": folder.trial_log(recurrence).absolute(),
        }
        if self._options.no_probe:
            own["BSO_PROBING"] = "off"
        if self.run.seed is not None:
            own["BSO_SEED"] = self.run.seed + sum(one.launches for one in known)
        if self._options.log_dir is not None:
            own["BSO_RECURRENCE_DIR"] = folder.of(recurrence).absolute()
            own["PYTHONUNBUFFERED"] = os.environ.get("PYTHONUNBUFFERED", "1")  # a file is no terminal
        if any(trial.is_energy_assumed for one in known for trial in one.trials):
            own[NOTICE_GIVEN] = ENERGY_ASSUMED
        return handed_on(os.environ, "BSO_URL", self._url) | {name: str(value) for name, value in own.items()}

    def _settled(self, recurrence: ScheduledRun, log: TrialLog, *, end: str) -> ScheduledRun:
        """With its trials. What its launch left open is finished, or suspended where a later one may resume it."""
        if recurrence.exit_code not in (0, RELAUNCH):
            print_notice(styled(f"[yellow]launch {recurrence.launches} {end}[/]"))
        log.end_line()
        for trial in log.trials:
            if trial.outcome is None:
                reason = f"the training reported no end of the trial: it {end}"
                self._finish(recurrence, trial, reason, may_resume=trial.is_resumable)
        _print_news(log)
        return self._save(replace(recurrence, trials=log.trials))

    def _ended(self, recurrence: ScheduledRun) -> ScheduledRun:
        """As it is when it is over. Once it has a model, what was left to be resumed ends for good.

        Without one it is left: only the command knows where its checkpoint is, and whether it will look there again.
        """
        ended = replace(recurrence, ended_at=datetime.now(UTC))
        if ended.has_model:
            for trial in ended.trials:
                if trial.waits_to_be_resumed:
                    self._finish(ended, trial, "no launch went on with it", may_resume=False)
        return self._save(ended)

    def _finish(self, recurrence: ScheduledRun, trial: SeenTrial, reason: str, *, may_resume: bool) -> None:
        """Finish the trial of a dead training as interrupted, or suspend it where it may go on from a checkpoint.

        The reply is in the trial log. Without one a notice says when the trial ends.
        """
        begun = trial.begun
        if not begun.trial_id:
            print_notice(f"{trial.name}: the next training registers it; it ends when its lease expires")
            return
        command = FinishTrial(
            trial_number=begun.trial_number,
            trial_id=begun.trial_id,
            outcome=Outcome.INTERRUPTED,
            reason=reason,
            may_resume=may_resume,
        )
        request = Request(command_id=str(uuid.uuid4()), job_id=trial.job_id, command=command)
        try:
            asyncio.run(call(self._url, request, trial_log=self._folder.trial_log(recurrence)))
        except BsoError as error:
            print_notice(f"trial {begun.trial_number} could not be finished ({error}); it ends when its lease expires")

    def _save(self, recurrence: ScheduledRun) -> ScheduledRun:
        self.run = replace(self.run, recurrences=(*self.run.recurrences[: recurrence.number - 1], recurrence))
        self._folder.save(self.run)
        return recurrence

    def _print_end(self, recurrence: ScheduledRun) -> None:
        if recurrence.exit_code == RELAUNCH:
            asked = counted(recurrence.launches, "launch", "launches")
            why = "--launches allows no more" if recurrence.stopped_by is None else "bso recur was stopped"
            words = f"after {asked} the training still asks for another one: {why}"
            print_notice(styled(f"[yellow]{words}[/]"))
        if not recurrence.trials and recurrence.exit_code == 0:
            print_notice(styled("[yellow]the command began no trial: does it train with bso_client?[/]"))
        if recurrence.trials:
            costs = [one.cost for one in counted_once(self.run.recurrences) if one.trials]
            mean, total = joules(sum(costs) / len(costs)), joules(sum(costs))
            words = f"cost of this recurrence {joules(recurrence.cost)}, mean {mean}, total {total}"
            print_notice(styled(f"[dim]{words}[/]"))
        if recurrence.ended_at is None and self._options.log_dir is not None:
            print_notice(f"go on with this recurrence: bso recur --log-dir {self._folder.path}")


class _Grace:
    """How long a training that was asked to end may take, which is said here."""

    def __init__(self, program: Program, received: signal.Signals, grace_s: float) -> None:
        self._program = program
        self._received = received
        self._grace_s = grace_s
        self._over_at_s = time.monotonic() + grace_s
        self._interrupts = program.interrupts
        self._last_words_s: float | None = None  # until when it may still keep its reports, after another Ctrl-C
        again = " again" if received is signal.SIGINT else ""
        if grace_s:
            print_notice(f"waiting up to {seconds(grace_s)} for the training to end; Ctrl-C{again} kills it")

    @property
    def over(self) -> str:
        """Why the training is killed now; empty: it may still end by itself."""
        now_s = time.monotonic()
        if self._last_words_s is None and self._program.interrupts > self._interrupts:
            self._last_words_s = now_s + _LAST_WORDS_S
        if self._last_words_s is not None and now_s >= self._last_words_s:
            return f"did not end after {self._received.name}, and SIGINT came again: killed"
        if now_s >= self._over_at_s:
            return f"did not end within {seconds(self._grace_s)} after {self._received.name}: killed"
        return ""


def _end_of(exit_code: int) -> str:
    """The end of a launch in words."""
    if (name := signal_of(exit_code)) is None:
        return f"ended with exit code {exit_code}"
    return f"was ended by {name}{' (killed, perhaps because memory ran out)' if name == 'SIGKILL' else ''}"


def _print_news(log: TrialLog) -> None:
    """Print which trials have begun, and how others ended."""
    for trial in log.read_new():
        who = trial.name
        why = "resumed" if trial.is_resumed else trial.begun.reason
        words = f"[bold]{who}: batch size {trial.begun.batch_size}[/], {escape(why)}"
        if trial.outcome is not None:
            colour = "green" if trial.outcome is Outcome.CONVERGED else "yellow"
            how = f"[{colour}]{trial.outcome.value.replace('_', ' ')}[/]"
            words = f"{who}: {how}, {escape(trial.outcome_reason)}; cost {joules(trial.cost)}"
        print_notice(styled(words), hang=HANG)


def _asks_for_another(recurrence: ScheduledRun) -> bool:
    """Whether the training wants to be launched again with another batch size.

    It says so by exit code 75. A launcher in between, such as torchrun, makes that 1; then the last trial shows it.
    """
    code, trials = recurrence.exit_code, recurrence.trials
    return code == RELAUNCH or (code != 0 and bool(trials) and trials[-1].asks_for_another)
