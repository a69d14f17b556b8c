"""What ``bso recur`` says while it drives, on standard error."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from rich.markup import escape
from rich.rule import Rule

from bso.cli.recurring.launching import Ended
from bso.cli.recurring.narration import SeenTrial
from bso.cli.recurring.records import Launch, Recurrence
from bso.cli.recurring.schedule import MOST_COUNTED, Due, duration_in_words
from bso.cli.terminal import HANG, counted, onlookers, print_notice, styled
from bso.domain.quantities import joules
from bso.domain.trial import Outcome
from bso_client import RELAUNCH

_RULE = 80  # columns at most; a file has no width


class Telling:
    """Tells a person at the terminal. ``log_dir`` None: nothing is kept."""

    def __init__(self, *, count: int | None, log_dir: Path | None) -> None:
        self._count = count
        self._log_dir = log_dir

    def waits(self, due: Due, *, number: int) -> None:
        """A recurrence will be due."""
        if due.missed and due.since is not None:
            many = "at least " if due.missed >= MOST_COUNTED else ""
            missed = f"[yellow]{many}{counted(due.missed, 'occasion')} missed since {local(due.since)}[/]"
            print_notice(styled(f"{missed}: a recurrence is never begun while another one runs"))
        left = due.at - datetime.now(UTC)
        if left.total_seconds() > 0:
            print_notice(f"recurrence {number} is due at {local(due.at)}, in {duration_in_words(left)}")

    def begins(self, recurrence: Recurrence, *, is_resumed: bool) -> None:
        """A recurrence begins, or goes on."""
        of = f" of {self._count}" if self._count is not None else ""
        again = ", resumed" if is_resumed else ""
        rule = Rule(f"recurrence {recurrence.number}{of}{again}", align="left", style="dim")
        onlookers().print(rule, width=min(onlookers().width, _RULE))

    def finds(self, recurrence: Recurrence, launch: Launch, *, is_running: bool) -> None:
        """An earlier driver's launch was found, still running or not."""
        log = f" (its output: {self._path(recurrence, launch)})" if launch.log is not None else ""
        what = "still runs: following it" if is_running else "ended while nobody watched, or ran on another machine"
        print_notice(f"launch {launch.number} of {local(launch.began_at)} {what}{log}")

    def fails(self, ended: Ended, launch: Launch) -> None:
        """A launch ended badly."""
        if ended.code != RELAUNCH:
            print_notice(styled(f"[yellow]the training {ended.words}[/]"))

    def ends(self, recurrence: Recurrence, done: list[Recurrence]) -> None:
        """A recurrence has ended, or the driver stops in it."""
        if recurrence.exit_code == RELAUNCH:
            asked = counted(len(recurrence.launches), "launch", "launches")
            print_notice(
                styled(f"[yellow]after {asked} the training still asks for another one: that is --launches[/]")
            )
        if not recurrence.trials:
            print_notice(styled("[yellow]the command began no trial: does it train with bso_client?[/]"))
        else:
            _say_progress(recurrence, done)
        if recurrence.is_open and self._log_dir is not None:
            print_notice(f"go on with this recurrence: bso recur --log-dir {self._log_dir}")

    def _path(self, recurrence: Recurrence, launch: Launch) -> Path:
        assert self._log_dir is not None
        assert launch.log is not None
        return self._log_dir / recurrence.folder_name / launch.log


def tell(trial: SeenTrial) -> None:
    """Say that a trial has begun, or how it ended."""
    who = f"trial {trial.trial_number} of job {trial.job_id}"
    if trial.outcome is None:
        print_notice(styled(f"[bold]{who}: batch size {trial.batch_size}[/], {escape(trial.reason)}"), hang=HANG)
        return
    how = f"[{_colour(trial.outcome)}]{trial.outcome.value.replace('_', ' ')}[/]"
    print_notice(styled(f"{who}: {how}, {escape(trial.outcome_reason)}; cost {joules(trial.cost)}"), hang=HANG)


def local(value: datetime) -> str:
    """A point in time as this machine's clock on the wall shows it."""
    return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _colour(outcome: Outcome) -> str:
    return "green" if outcome is Outcome.CONVERGED else "yellow"


def _say_progress(recurrence: Recurrence, done: list[Recurrence]) -> None:
    trials = sum(len(one.trials) for one in done)
    total = sum(one.cost for one in done)
    this, mean = joules(recurrence.cost), joules(total / len(done))
    words = f"cost of this recurrence {this}, mean {mean}, total {joules(total)} in {counted(trials, 'trial')}"
    print_notice(styled(f"[dim]{words}[/]"))
