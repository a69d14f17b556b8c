"""Runs recurrences: launches until there is a model, and keeps each step before it is taken."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.rule import Rule

from bso.domain.quantities import joules
from bso.domain.trial import Outcome
from bso_cli.options import here
from bso_cli.recurring.launches import finish_as_interrupted, launch
from bso_cli.recurring.recurrences import Launch, Occasion, RecurringRun, RunFolder
from bso_cli.recurring.trials import SeenTrial, TrialLog
from bso_cli.terminal import HANG, counted, onlookers, print_notice, styled
from bso_client import RELAUNCH
from bso_client.energy.meters import ENERGY_ASSUMED, NOTICE_GIVEN

if TYPE_CHECKING:
    from bso_cli.recur import RecurOptions

_RULE = 80  # columns at most; a file has no width
_STANDARD_ERROR = 2


class RunDriver:
    """Drives a run in its folder, from where it stands.

    ``lock`` is the file descriptor of the lock on a folder that stays, and holds what programs print. None: the folder
    is this run's alone, and programs have this terminal.
    """

    def __init__(self, *, run: RecurringRun, folder: RunFolder, lock: int | None, options: RecurOptions) -> None:
        self.run = run
        self._folder = folder
        self._lock = lock
        self._options = options
        self._url = here(url=options.url).optimizer_url

    def drive(self) -> int:
        """Run what is left. Returns the first failed command's exit code, 128 + n after signal n, else 0."""
        code = 0
        while (recurrence := self._next()) is not None:
            recurrence = self._recur(recurrence)
            self._say_end(recurrence)
            code = code or recurrence.exit_code
            stopped_by = recurrence.launches[-1].stopped_by
            if recurrence.is_open or stopped_by is not None:
                return code or (128 + signal.Signals[stopped_by] if stopped_by is not None else 0)
        return code

    def _next(self) -> Occasion | None:
        """The recurrence to work on; None: all are done."""
        last = self.run.recurrences[-1] if self.run.recurrences else None
        is_resumed = last is not None and last.is_open
        if last is None or not last.is_open:
            number = 1 if last is None else last.number + 1
            if number > self.run.count:
                return None
            last = Occasion(number=number, recurrence_id=str(uuid.uuid4()), began_at=_now())
            self._save(last)
        title = f"recurrence {last.number} of {self.run.count}{', resumed' if is_resumed else ''}"
        onlookers().print(Rule(title, align="left", style="dim"), width=min(onlookers().width, _RULE))
        return last

    def _recur(self, recurrence: Occasion) -> Occasion:
        """Work on a recurrence until it is over, or has to be left open."""
        log = TrialLog(self._folder.trial_log(recurrence))
        log.read_new()
        left = self._options.launches
        while True:
            code = stopped_by = None
            if not recurrence.is_running:  # else it was left by a process that was killed, and the lock shows its end
                left -= 1
                recurrence = replace(recurrence, launches=(*recurrence.launches, Launch(began_at=_now())))
                code, stopped_by = self._launch(recurrence, log)
            recurrence = recurrence.ended(_now(), code, stopped_by)
            self._settle(recurrence, log)
            recurrence = replace(recurrence, trials=log.trials)
            is_over = recurrence.has_model and not code
            if not is_over and stopped_by is None:
                if code is None or (left and _asks_for_another(recurrence)):
                    self._save(recurrence)
                    continue
                is_over = code == 0 or self._options.keep_going
            if is_over:
                recurrence = replace(recurrence, ended_at=_now())
                self._give_up(recurrence)
            self._save(recurrence)
            return recurrence

    def _launch(self, recurrence: Occasion, log: TrialLog) -> tuple[int, str | None]:
        """Launch the command, which has been noted; its exit code, and the signal that stopped it."""
        environment = self._environment(recurrence, log)
        self._save(recurrence)
        options = self._options
        code, stopped_by = launch(
            self.run.command,
            {
                "env": environment,
                "stdout": _STANDARD_ERROR if options.as_json else None,
                "pass_fds": () if self._lock is None else (self._lock,),
            },
            log=None if self._lock is None else self._folder.of(recurrence) / f"launch-{len(recurrence.launches)}.log",
            shown=None if options.quiet else (sys.stderr if options.as_json else sys.stdout).buffer,
            grace_s=options.grace,
            look=lambda: _say_news(log),
        )
        _say_news(log)
        return code, None if stopped_by is None else stopped_by.name

    def _environment(self, recurrence: Occasion, log: TrialLog) -> Mapping[str, str]:
        own: dict[str, object] = {
            "BSO_URL": self._url,
            "BSO_RECURRENCE_ID": recurrence.recurrence_id,
            "BSO_RECURRENCE_NUMBER": recurrence.number,
            "BSO_LAUNCH_NUMBER": len(recurrence.launches),
            "BSO_TRIAL_LOG": log.path.absolute(),
            "BSO_JOB_ID": self.run.job_id,
            "BSO_SEED": self.run.next_seed,
            "BSO_RECURRENCE_DIR": None if self._lock is None else self._folder.of(recurrence).absolute(),
        }
        if any(trial.is_energy_assumed for one in self.run.recurrences for trial in one.trials):
            own[NOTICE_GIVEN] = ENERGY_ASSUMED
        return {**os.environ, **{name: str(value) for name, value in own.items() if value is not None}}

    def _settle(self, recurrence: Occasion, log: TrialLog) -> None:
        """Finish as interrupted what a program has left open; the next launch may go on with it from a checkpoint."""
        last = recurrence.launches[-1]
        if last.exit_code not in (0, RELAUNCH):
            print_notice(styled(f"[yellow]launch {len(recurrence.launches)} {last.end}[/]"))
        for trial in [trial for trial in log.trials if trial.is_open]:
            reason = f"the training {last.end} without reporting its end"
            self._finish(trial, reason, may_resume=self._may_resume(recurrence))
            _say_trial(log.close(trial, Outcome.INTERRUPTED, reason))

    def _give_up(self, recurrence: Occasion) -> None:
        """Finish for good what was left to be resumed: no launch will go on with it."""
        if self._may_resume(recurrence):
            for trial in [trial for trial in recurrence.trials if trial.outcome is Outcome.INTERRUPTED]:
                self._finish(trial, trial.outcome_reason, may_resume=False)

    def _may_resume(self, recurrence: Occasion) -> bool:
        return self._lock is not None and self._folder.holds_more(recurrence)

    def _finish(self, trial: SeenTrial, reason: str, *, may_resume: bool) -> None:
        finish_as_interrupted(self._url, trial, reason, may_resume=may_resume)

    def _save(self, recurrence: Occasion) -> None:
        self.run = self.run.with_(recurrence)
        self._folder.save(self.run)

    def _say_end(self, recurrence: Occasion) -> None:
        if recurrence.exit_code == RELAUNCH:
            asked = counted(len(recurrence.launches), "launch", "launches")
            words = f"after {asked} the training still asks for another one: --launches allows no more"
            print_notice(styled(f"[yellow]{words}[/]"))
        if not recurrence.trials:
            print_notice(styled("[yellow]the command began no trial: does it train with bso_client?[/]"))
        else:
            done = self.run.recurrences
            total = sum(one.cost for one in done)
            trials = counted(sum(len(one.trials) for one in done), "trial")
            this, mean = joules(recurrence.cost), joules(total / len(done))
            words = f"cost of this recurrence {this}, mean {mean}, total {joules(total)} in {trials}"
            print_notice(styled(f"[dim]{words}[/]"))
        if recurrence.is_open and self._lock is not None:
            print_notice(f"go on with this recurrence: bso recur --log-dir {self._folder.path}")


def _now() -> datetime:
    return datetime.now(UTC)


def _say_news(log: TrialLog) -> None:
    for trial in log.read_new():
        _say_trial(trial)


def _say_trial(trial: SeenTrial) -> None:
    """Say that a trial has begun, or how it ended."""
    who = f"trial {trial.trial_number} of job {trial.job_id}"
    if trial.outcome is None:
        print_notice(styled(f"[bold]{who}: batch size {trial.batch_size}[/], {escape(trial.reason)}"), hang=HANG)
        return
    colour = "green" if trial.outcome is Outcome.CONVERGED else "yellow"
    how = f"[{colour}]{trial.outcome.value.replace('_', ' ')}[/]"
    print_notice(styled(f"{who}: {how}, {escape(trial.outcome_reason)}; cost {joules(trial.cost)}"), hang=HANG)


def _asks_for_another(recurrence: Occasion) -> bool:
    """Whether the training wants to be launched again with another batch size.

    It says so by exit code 75. A launcher in between, such as torchrun, makes that 1; then the last trial shows it.
    """
    code, trials = recurrence.exit_code, recurrence.trials
    return code == RELAUNCH or (code != 0 and bool(trials) and trials[-1].asks_for_another)
