"""A trial: one training run with one batch size, and its life.

The life of a trial (a test holds this diagram against TRANSITIONS)::

    RUNNING   -> SUSPENDED   its lease lapsed
    SUSPENDED -> RUNNING     a report, a renewal or a resumption arrived
    RUNNING   -> ENDED       a verdict, or the training said how it ended
    SUSPENDED -> ENDED       nothing was received for the whole resume window
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import JobSpec
from bso.domain.learning_rate import LearningRate


class TrialState(Enum):
    """Where a trial stands."""

    RUNNING = "running"  # holds a lease; its batch size counts as being tried
    SUSPENDED = "suspended"  # its lease lapsed; it may still wake up, its batch size may be offered again
    ENDED = "ended"  # has an outcome; this never changes again


TRANSITIONS = frozenset(
    {
        (TrialState.RUNNING, TrialState.SUSPENDED),
        (TrialState.SUSPENDED, TrialState.RUNNING),
        (TrialState.RUNNING, TrialState.ENDED),
        (TrialState.SUSPENDED, TrialState.ENDED),
    }
)


class Outcome(Enum):
    """How a trial ended."""

    CONVERGED = "converged"  # reached the target metric: there is a model
    NOT_CONVERGED = "not_converged"  # max_epochs passed, the metric diverged, or the training gave up
    COST_EXCEEDED = "cost_exceeded"  # stopped early: its cost is censored, the true one is higher
    INFEASIBLE = "infeasible"  # this batch size cannot run here, out of memory above all
    INTERRUPTED = "interrupted"  # ended from outside: says little about the batch size
    CANCELLED = "cancelled"  # the user, or a deletion, called it off: says nothing

    def __str__(self) -> str:
        """The word that is recorded and exported."""
        return self.value


FAILURES = frozenset({Outcome.NOT_CONVERGED, Outcome.COST_EXCEEDED, Outcome.INFEASIBLE})
"""The outcomes that make a trial an abort of its recurrence and a failure of its batch size."""

OUT_OF_MEMORY = "out_of_memory"  # infeasible, and so is every larger batch size
DIVERGED = "diverged"  # the metric was not a finite number twice in a row
SHORTEST_SILENCE_S = 3600.0
"""For so long, or for so many times its longest epoch, a trial may stay silent whose client renews no lease."""
EPOCHS_OF_SILENCE = 3.0
LONGEST_SILENCE_S = 30 * 86400.0

LEASE_LAPSED = "lease_lapsed"  # nothing was received from it for the whole resume window; its result may come late


def reason_code(reason: str) -> str:
    """The code word before the colon of a reason such as ``diverged: the metric was nan twice in a row``."""
    return reason.partition(":")[0].strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """What a training said after an epoch: all numbers but the metric are cumulative since on_train_begin.

    ``epoch`` is the progress in epochs (a float), ``time_s`` in seconds, ``energy_j`` in joules (None: not
    measured). ``metric`` may be NaN or infinite: a batch size that is too large looks like that. ``is_profiling``:
    power limits were profiled since the report before.
    """

    epoch: float
    time_s: float
    energy_j: float | None
    metric: float
    is_profiling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """How far a training has come: ``epoch`` (a float), seconds and joules, all since its beginning."""

    epoch: float
    time_s: float
    energy_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """The part of a training that passed while power limits were profiled: progress in epochs, seconds, joules."""

    epochs: float = 0.0
    time_s: float = 0.0
    energy_j: float = 0.0

    def plus(self, before: Totals, after: Totals) -> Profiled:
        """This and what lies between two reports."""
        return Profiled(
            epochs=self.epochs + (after.epoch - before.epoch),
            time_s=self.time_s + (after.time_s - before.time_s),
            energy_j=self.energy_j + (after.energy_j - before.energy_j),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One training run. ``trial_number`` is dense per job; its reports must carry the ``trial_id``.

    The id distinguishes the reports of this trial from stale ones. It is derived from the ``command_id`` by which the
    trial began, so it is no secret, and it gives no right.
    ``time_s`` and ``energy_j`` are what it took; ``cost`` leaves out what profiling power limits added to them.
    ``cost_squares`` says by how much epoch costs of its reports differ; see bso.domain.progress.
    ``silence_s``: its client renews no lease, so it may stay silent for so long; None: it does.
    """

    trial_number: int
    trial_id: str
    version_number: int
    recurrence_id: str
    attempt: int
    batch_size: int
    hardware: HardwareKind
    reason: str
    is_unbounded: bool
    started_at: datetime
    learning_rate: LearningRate | None = None
    state: TrialState = TrialState.RUNNING
    lease_expires_at: datetime | None = None
    reports: int = 0
    epoch: float = 0.0
    time_s: float = 0.0
    energy_j: float = 0.0
    is_energy_complete: bool = True
    profiled: Profiled = Profiled()
    metric: float | None = None
    nonfinite_metrics_in_a_row: int = 0
    cost: float = 0.0
    cost_squares: float = 0.0
    bound: float | None = None
    outcome: Outcome | None = None
    outcome_reason: str = ""
    is_over_bound: bool = False
    late_outcome: Outcome | None = None
    ended_at: datetime | None = None
    silence_s: float | None = None

    @property
    def is_active(self) -> bool:
        """Whether the trial has not ended yet."""
        return self.state is not TrialState.ENDED

    @property
    def last_outcome(self) -> Outcome | None:
        """What came of it in the end: a result that came late counts. None: it has not ended."""
        return self.late_outcome or self.outcome

    @property
    def totals(self) -> Totals:
        """How far it had come at its last report."""
        return Totals(epoch=self.epoch, time_s=self.time_s, energy_j=self.energy_j)

    @property
    def is_evaluated_once(self) -> bool:
        """Whether its only evaluation so far came with its first epoch."""
        return self.reports == 1 and self.epoch <= 1.0

    def has_measured_cost(self, spec: JobSpec) -> bool:
        """Whether its cost leaves nothing out: where energy counts, all of it was measured."""
        return self.is_energy_complete or spec.eta_knob == 0.0

    @property
    def may_report_late(self) -> bool:
        """Whether a result is still accepted although the trial has ended: it was only given up in silence."""
        was_given_up = self.outcome is Outcome.INTERRUPTED and reason_code(self.outcome_reason) == LEASE_LAPSED
        return was_given_up and self.late_outcome is None
