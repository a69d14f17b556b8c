"""What ``bso recur`` keeps of a run: its recurrences and trials, and every word that was printed.

run.json                      the command, and how each recurrence ended
recurrence-0001/launch-1.log  what the first launch printed
recurrence-0001/trials.jsonl  what its trainings sent and received
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from bso.domain.errors import Misconfigured
from bso.domain.trial import Outcome
from bso_cli.recurring.trials import SeenTrial, seen_trials


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRun:
    """One recurrence: it must yield a model, and is open until ``ended_at``.

    ``is_running``, ``exit_code`` and ``stopped_by`` are those of its last launch. The exit code is that of a shell;
    None: it runs, or nobody saw it end. ``stopped_by`` is the signal to ``bso recur`` that ended it, if one did.
    """

    number: int
    recurrence_id: str
    began_at: datetime
    ended_at: datetime | None = None
    launches: int = 0
    is_running: bool = False
    exit_code: int | None = None
    stopped_by: int | None = None
    trials: tuple[SeenTrial, ...] = ()

    @property
    def is_interrupted(self) -> bool:
        """Whether somebody stopped its last launch, to go on with it later."""
        return self.ended_at is None and self.stopped_by is not None

    @property
    def has_failed(self) -> bool:
        """Whether its last launch ended badly by itself."""
        return bool(self.exit_code) and not self.is_interrupted

    @property
    def has_model(self) -> bool:
        """Whether a trial converged."""
        return any(trial.outcome is Outcome.CONVERGED for trial in self.trials)

    @property
    def is_without_model(self) -> bool:
        """Whether trials began and none converged; a command that sent nothing to bso may have a model all the same."""
        return bool(self.trials) and not self.has_model and not self.is_running

    @property
    def called_off(self) -> str | None:
        """Why its last trial was called off, if it was and there is no model."""
        is_called_off = self.trials and not self.has_model and self.trials[-1].outcome is Outcome.CANCELLED
        return self.trials[-1].outcome_reason if is_called_off else None

    @property
    def cost(self) -> float:
        """The cost of all its trials [J]."""
        return sum(trial.cost for trial in self.trials)

    @property
    def time_s(self) -> float:
        """The training time of all its trials, as far as they reported it."""
        return sum(trial.time_s for trial in self.trials)

    @property
    def energy_j(self) -> float | None:
        """The energy of all its trials; None where one reported none."""
        found = [trial.energy_j for trial in self.trials if trial.time_s]
        return None if not found or None in found else sum(filter(None, found))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringRun:
    """A command that is run for ``count`` recurrences.

    ``seed`` is that of the first launch; each launch has its own, one more than the last.
    """

    command: tuple[str, ...]
    count: int
    seed: int | None = None
    recurrences: tuple[ScheduledRun, ...] = ()


class RunFolder:
    """Where a run keeps what it knows. One process writes at a time; anybody may read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path / "run.json"

    @contextlib.contextmanager
    def occupied(self) -> Iterator[int]:
        """Make the folder and keep others out, until the lock's file descriptor, which is given, is closed everywhere.

        A training that inherits it keeps them out, too. Raises Misconfigured where somebody is in.
        """
        from filelock import lock_descriptor

        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("a+", encoding="utf-8") as lock:
            if not lock_descriptor(lock.fileno(), blocking=False):
                lock.seek(0)
                holder = lock.read().strip() or "another process"
                raise Misconfigured(
                    f"{self.path} is in use by {holder}, or by a training that is still running: one `bso recur` at "
                    f"a time may write there. Wait, or see its results with `bso recur --summary --log-dir {self.path}`"
                )
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {platform.node()}\n")
            lock.flush()
            yield lock.fileno()

    def run(self) -> RecurringRun | None:
        """What is run here; None: nothing ever was. Raises Misconfigured where it cannot be read."""
        from bso.schema.envelope import validated
        from bso.schema.errors import MalformedMessage

        if not self._file.exists():
            return None
        try:
            found: RecurringRun = validated(RecurringRun, json.loads(self._file.read_bytes()), str(self._file))
        except (ValueError, MalformedMessage) as error:
            raise Misconfigured(f"{self._file} is damaged ({error}): use another folder") from error
        seen = (replace(one, trials=seen_trials(self.trial_log(one))) for one in found.recurrences)
        return replace(found, recurrences=tuple(seen))

    def save(self, run: RecurringRun) -> None:
        """Keep a run as it is now: the file is replaced as a whole, so that every reader finds it whole.

        Trials are not in it: their logs are written by the trainings.
        """
        from bso.schema.codec import dump
        from bso_client.atomic import replace_file

        kept = json.loads(dump(run))
        for one in kept["recurrences"]:
            del one["trials"]
        replace_file(self._file, json.dumps(kept, indent=1) + "\n")

    def of(self, recurrence: ScheduledRun) -> Path:
        """The folder of a recurrence."""
        return self.path / f"recurrence-{recurrence.number:04d}"

    def trial_log(self, recurrence: ScheduledRun) -> Path:
        """What the trainings of a recurrence send to the optimizer and receive."""
        return self.of(recurrence) / "trials.jsonl"


def counted_once(recurrences: Sequence[ScheduledRun]) -> list[ScheduledRun]:
    """The recurrences, where a trial that another recurrence resumed is left to the last one that did.

    Its cost, time and energy are totals from its beginning, so a sum over recurrences counts them once.
    """
    kept: list[ScheduledRun] = []
    resumed_later: set[tuple[str, str]] = set()
    for one in reversed(recurrences):
        own = [(trial, (trial.job_id, trial.begun.trial_id)) for trial in one.trials]
        kept.append(replace(one, trials=tuple(trial for trial, name in own if name not in resumed_later)))
        resumed_later |= {name for trial, name in own if trial.is_resumed and trial.begun.trial_id}
    return kept[::-1]


def signal_of(exit_code: int) -> str | None:
    """The signal that ended a program with this exit code of a shell, None for other codes."""
    return next((each.name for each in signal.Signals if each == exit_code - 128), None)
