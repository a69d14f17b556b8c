"""What ``bso recur`` remembers: the run, its recurrences, their launches. These are also its files, as JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from bso.cli.recurring.narration import SeenTrial
from bso.domain.trial import Outcome

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is run, and when: ``count`` recurrences (None: until stopped), at once, ``every`` so often or by ``cron``.

    ``seed`` is that of the first launch; each launch has its own, one more than the last.
    """

    command: tuple[str, ...]
    began_at: datetime
    count: int | None = None
    every: str | None = None
    cron: str | None = None
    job_id: str | None = None
    seed: int | None = None
    format: int = FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of the command. ``exit_code`` is what a shell would say; None: nobody saw it end, or it runs.

    ``stopped_by`` is the signal to its driver that ended it, if one did.
    """

    number: int
    began_at: datetime
    log: str | None = None
    seed: int | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    stopped_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """One occasion on which a model is wanted. Open until ``ended_at``; ``due_at`` is when the schedule wanted it."""

    number: int
    recurrence_id: str
    began_at: datetime
    due_at: datetime | None = None
    ended_at: datetime | None = None
    launches: tuple[Launch, ...] = ()
    trials: tuple[SeenTrial, ...] = ()

    @property
    def folder_name(self) -> str:
        """Its folder in that of the run."""
        return f"recurrence-{self.number:04d}"

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
        """Whether somebody stopped its last launch, for another driver to go on with it."""
        return self.is_open and not self.is_running and bool(self.launches) and self.launches[-1].stopped_by is not None

    @property
    def has_failed(self) -> bool:
        """Whether its last launch ended badly by itself."""
        return bool(self.exit_code) and not self.is_running and not self.is_interrupted

    @property
    def job_ids(self) -> frozenset[str]:
        """The jobs that it trained."""
        return frozenset(trial.job_id for trial in self.trials)

    @property
    def called_off(self) -> SeenTrial | None:
        """Its last trial, if that was called off and there is no model."""
        if not self.trials or self.has_model or self.trials[-1].outcome is not Outcome.CANCELLED:
            return None
        return self.trials[-1]

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
    def cost(self) -> float:
        """The cost of all its trials, in J."""
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

    def launched(self, launch: Launch) -> Recurrence:
        """With one more launch."""
        return replace(self, launches=(*self.launches, launch))

    def last_ended(self, *, at: datetime, exit_code: int | None, stopped_by: str | None = None) -> Recurrence:
        """With the end of the last launch."""
        *before, last = self.launches
        ended = replace(last, ended_at=at, exit_code=exit_code, stopped_by=stopped_by)
        return replace(self, launches=(*before, ended))
