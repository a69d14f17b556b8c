"""What ``bso recur`` keeps of a run: its recurrences, their launches and trials, and every word that was printed.

run.json                      the command, and what came of each recurrence
recurrence-0001/launch-1.log  what the first launch printed
recurrence-0001/trials.jsonl  what its trainings sent and received
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from bso.domain.errors import Misconfigured
from bso.domain.trial import Outcome
from bso_cli.recurring.trials import SeenTrial


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of the command. ``exit_code`` is that of a shell; None: it runs, or nobody saw it end.

    ``stopped_by`` is the signal to ``bso recur`` that ended it, if one did.
    """

    began_at: datetime
    ended_at: datetime | None = None
    exit_code: int | None = None
    stopped_by: str | None = None

    @property
    def end(self) -> str:
        """Its end in words."""
        if self.exit_code is None:
            return "ended while no bso recur ran"
        if (name := signal_of(self.exit_code)) is not None:
            hint = " (killed, perhaps because memory ran out)" if name == "SIGKILL" else ""
            return f"was ended by {name}{hint}"
        return f"ended with exit code {self.exit_code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """One occasion on which a model is wanted, open until ``ended_at``."""

    number: int
    recurrence_id: str
    began_at: datetime
    ended_at: datetime | None = None
    launches: tuple[Launch, ...] = ()
    trials: tuple[SeenTrial, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether it is still to be worked on."""
        return self.ended_at is None

    @property
    def is_running(self) -> bool:
        """Whether its last launch has not ended, as far as is known."""
        return bool(self.launches) and self.launches[-1].ended_at is None

    @property
    def is_interrupted(self) -> bool:
        """Whether somebody stopped its last launch, to go on with it later."""
        return self.is_open and not self.is_running and bool(self.launches) and self.launches[-1].stopped_by is not None

    @property
    def has_failed(self) -> bool:
        """Whether its last launch ended badly by itself."""
        return bool(self.exit_code) and not self.is_running and not self.is_interrupted

    @property
    def exit_code(self) -> int:
        """The exit code of the last launch, 0 where none is known."""
        return (self.launches[-1].exit_code or 0) if self.launches else 0

    @property
    def has_model(self) -> bool:
        """Whether a trial converged."""
        return any(trial.outcome is Outcome.CONVERGED for trial in self.trials)

    @property
    def is_without_model(self) -> bool:
        """Whether trials began and none converged; a command that sent nothing to bso may have a model all the same."""
        return bool(self.trials) and not self.has_model and not self.is_running

    @property
    def called_off(self) -> SeenTrial | None:
        """Its last trial, if that was called off and there is no model."""
        last = self.trials[-1] if self.trials and not self.has_model else None
        return last if last is not None and last.outcome is Outcome.CANCELLED else None

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
        found = [trial.energy_j for trial in self.trials if trial.reports]
        return None if not found or None in found else sum(energy for energy in found if energy is not None)

    def ended(self, now: datetime, exit_code: int | None, stopped_by: str | None) -> Occasion:
        """With the end of its last launch."""
        last = replace(self.launches[-1], ended_at=now, exit_code=exit_code, stopped_by=stopped_by)
        return replace(self, launches=(*self.launches[:-1], last))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringRun:
    """A command that is run for ``count`` recurrences.

    ``seed`` is that of the first launch; each launch has its own, one more than the last.
    """

    command: tuple[str, ...]
    began_at: datetime
    count: int
    job_id: str | None = None
    seed: int | None = None
    recurrences: tuple[Occasion, ...] = ()

    def with_(self, recurrence: Occasion) -> RecurringRun:
        """With a recurrence as it is now."""
        return replace(self, recurrences=(*self.recurrences[: recurrence.number - 1], recurrence))

    @property
    def next_seed(self) -> int | None:
        """The seed of the next launch."""
        return None if self.seed is None else self.seed + sum(len(one.launches) for one in self.recurrences)


class RunFolder:
    """Where a run keeps what it knows. One process writes at a time; anybody may read."""

    def __init__(self, path: Path) -> None:
        self.path = path

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
                    f"{self.path} is in use by {holder}, or by a training that it has left running: one `bso recur` at "
                    f"a time may write there. Wait, or see its results with `bso recur --summary --log-dir {self.path}`"
                )
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {platform.node()}\n")
            lock.flush()
            yield lock.fileno()

    @property
    def _file(self) -> Path:
        return self.path / "run.json"

    def holds_run(self) -> bool:
        """Whether anything was ever run here."""
        return self._file.exists()

    def run(self) -> RecurringRun:
        """What is run here. Raises Misconfigured where it cannot be read."""
        from bso.schema.envelope import validated
        from bso.schema.errors import MalformedMessage

        try:
            found: RecurringRun = validated(RecurringRun, json.loads(self._file.read_bytes()), str(self._file))
        except (ValueError, MalformedMessage) as error:
            raise Misconfigured(f"{self._file} is damaged ({error}): use another folder") from error
        return found

    def save(self, run: RecurringRun) -> None:
        """Keep a run as it is now: the file is replaced as a whole, so that every reader finds it whole."""
        from bso.schema.codec import dump
        from bso_client.atomic import replace_file

        for recurrence in run.recurrences[-1:]:
            self.of(recurrence).mkdir(exist_ok=True)
        replace_file(self._file, json.dumps(json.loads(dump(run)), indent=1) + "\n")

    def of(self, recurrence: Occasion) -> Path:
        """The folder of a recurrence."""
        return self.path / f"recurrence-{recurrence.number:04d}"

    def trial_log(self, recurrence: Occasion) -> Path:
        """What the trainings of a recurrence send to the optimizer and receive."""
        return self.of(recurrence) / "trials.jsonl"

    def holds_more(self, recurrence: Occasion) -> bool:
        """Whether the training has left something in the recurrence's folder, such as a checkpoint."""
        names = {path.name for path in self.of(recurrence).iterdir() if not path.match("launch-*.log")}
        return bool(names - {"trials.jsonl"})


def signal_of(exit_code: int) -> str | None:
    """The signal that ended a program with this exit code of a shell, None for other codes."""
    return next((each.name for each in signal.Signals if each == exit_code - 128), None)
