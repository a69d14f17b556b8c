"""Runs recurrences: launches until there is a model, and keeps each step before it is taken."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import BinaryIO

from rich.markup import escape
from rich.rule import Rule

from bso.domain.quantities import joules
from bso.domain.trial import Outcome
from bso_cli.recurring.launches import Ended, Output, finish_as_interrupted, launch
from bso_cli.recurring.recurrences import Launch, Occasion, RecurringRun, RunFolder
from bso_cli.recurring.trials import SeenTrial, TrialLog
from bso_cli.terminal import HANG, counted, onlookers, print_notice, styled
from bso_client import RELAUNCH
from bso_client.energy.meters import ENERGY_ASSUMED, NOTICE_GIVEN

_RULE = 80  # columns at most; a file has no width


class NextStep(Enum):
    """What happens after the end of a launch."""

    AGAIN = "again"  # another launch of the same recurrence
    OVER = "over"  # the recurrence is closed, the next one may come
    STOP = "stop"  # the recurrence stays open, to be gone on with later


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a run is driven. ``is_kept``: its folder stays, and holds what programs print; ``shown`` gets a copy.

    ``launches`` is the most launches of one recurrence, ``keeps_going`` whether a failed one is left behind.
    """

    environment: Mapping[str, str]
    launches: int
    keeps_going: bool
    grace_s: float
    is_kept: bool
    shown: BinaryIO | None
    stdout: int | None


class RunDriver:
    """Drives a run in its folder, from where it stands; ``lock`` is the file descriptor of the folder's lock."""

    def __init__(self, run: RecurringRun, folder: RunFolder, options: Options, *, lock: int | None) -> None:
        self.run = run
        self._folder = folder
        self._options = options
        self._lock = lock

    def drive(self) -> int:
        """Run what is left. Returns the first failed command's exit code, 128 + n after signal n, else 0."""
        code = 0
        while (recurrence := self._next()) is not None:
            recurrence, ended = self._recur(recurrence)
            self._say_end(recurrence)
            code = code or ended.code or 0
            if recurrence.is_open or ended.stopped_by is not None:
                return code or 128 + (ended.stopped_by or 0)
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

    def _recur(self, recurrence: Occasion) -> tuple[Occasion, Ended]:
        """Work on a recurrence until it is over, or has to be left open."""
        log = TrialLog(self._folder.trial_log(recurrence))
        log.read_new()
        launches = 0
        while True:
            if recurrence.is_running:  # it was left by a process that was killed; the lock shows that it has ended
                ended = Ended(code=None)
                print_notice(f"launch {len(recurrence.launches)} {ended.words}")
            else:
                recurrence, ended = self._launch(recurrence, log)
                launches += 1
            self._settle(recurrence, log, ended)
            stopped_by = None if ended.stopped_by is None else ended.stopped_by.name
            last = replace(recurrence.launches[-1], ended_at=_now(), exit_code=ended.code, stopped_by=stopped_by)
            recurrence = replace(recurrence.with_last(last), trials=log.trials)
            step = self._step(recurrence, ended, launches)
            if step is NextStep.OVER:
                recurrence = replace(recurrence, ended_at=_now())
                self._give_up(recurrence, log)
            self._save(recurrence)
            if step is not NextStep.AGAIN:
                return recurrence, ended

    def _step(self, recurrence: Occasion, ended: Ended, launches: int) -> NextStep:
        if recurrence.has_model and not ended.code:
            return NextStep.OVER
        if ended.stopped_by is not None:
            return NextStep.STOP
        if ended.code is None or (launches < self._options.launches and _asks_for_another(ended, recurrence)):
            return NextStep.AGAIN
        return NextStep.OVER if ended.code == 0 or self._options.keeps_going else NextStep.STOP

    def _launch(self, recurrence: Occasion, log: TrialLog) -> tuple[Occasion, Ended]:
        number, options = len(recurrence.launches) + 1, self._options
        environment = self._environment(recurrence, log, number)
        recurrence = replace(recurrence, launches=(*recurrence.launches, Launch(began_at=_now())))
        self._save(recurrence)
        output = Output(stdout=options.stdout)
        if options.is_kept:
            path = self._folder.of(recurrence) / f"launch-{number}.log"
            output = Output(log=path, shown=options.shown, lock=self._lock)
        ended = launch(self.run.command, environment, output, grace_s=options.grace_s, look=lambda: _say_news(log))
        _say_news(log)
        if ended.code and ended.code != RELAUNCH:
            print_notice(styled(f"[yellow]the training {ended.words}[/]"))
        return recurrence, ended

    def _environment(self, recurrence: Occasion, log: TrialLog, launch_number: int) -> Mapping[str, str]:
        own: dict[str, object] = {
            "BSO_RECURRENCE_ID": recurrence.recurrence_id,
            "BSO_RECURRENCE_NUMBER": recurrence.number,
            "BSO_LAUNCH_NUMBER": launch_number,
            "BSO_TRIAL_LOG": log.path.absolute(),
            "BSO_JOB_ID": self.run.job_id,
            "BSO_SEED": self.run.next_seed,
            "BSO_RECURRENCE_DIR": self._folder.of(recurrence).absolute() if self._options.is_kept else None,
        }
        if any(trial.is_energy_assumed for one in self.run.recurrences for trial in one.trials):
            own[NOTICE_GIVEN] = ENERGY_ASSUMED
        return {**self._options.environment, **{name: str(value) for name, value in own.items() if value is not None}}

    def _settle(self, recurrence: Occasion, log: TrialLog, ended: Ended) -> None:
        """Finish as interrupted what a program has left open; the next launch may go on with it from a checkpoint."""
        may_resume = self._options.is_kept and self._folder.holds_more(recurrence)
        for trial in [trial for trial in log.trials if trial.is_open]:
            reason = f"the training {ended.words} without reporting its end"
            finish_as_interrupted(self._options.environment["BSO_URL"], trial, reason, may_resume=may_resume)
            _say_trial(log.close(trial, Outcome.INTERRUPTED, reason))

    def _give_up(self, recurrence: Occasion, log: TrialLog) -> None:
        """Finish for good what was left to be resumed: no launch will go on with it."""
        if self._options.is_kept and self._folder.holds_more(recurrence):
            for trial in [trial for trial in log.trials if trial.outcome is Outcome.INTERRUPTED]:
                url = self._options.environment["BSO_URL"]
                finish_as_interrupted(url, trial, trial.outcome_reason, may_resume=False)

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
        if recurrence.is_open and self._options.is_kept:
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


def _asks_for_another(ended: Ended, recurrence: Occasion) -> bool:
    """Whether the training wants to be launched again with another batch size.

    It says so by exit code 75. A launcher in between, such as torchrun, makes that 1; then the last trial shows it.
    """
    if ended.code == RELAUNCH:
        return True
    return bool(ended.code) and bool(recurrence.trials) and recurrence.trials[-1].asks_for_another
