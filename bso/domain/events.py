"""Events: facts that happened to a job, in the past tense. Folding them with evolve gives the job's state.

Whatever was computed stands in the event, so that folding a log decides nothing and calls no numerical library.
A policy may have events of its own beside these.
``hardware_key`` together with ``version_number`` names the knowledge that an event changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from bso.domain.commands import PowerMeasurement
from bso.domain.hardware import HardwareKind
from bso.domain.inheritance import Inheritance
from bso.domain.job_spec import JobSpec
from bso.domain.learning_rate import LearningRate
from bso.domain.rights import Right
from bso.domain.trial import EpochReport, Outcome, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyData:
    """A value of a policy's own class, and the name of the policy, which reads it again."""

    policy: str
    data: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRegistered:
    """A job came into being, or came back after its deletion, with an empty memory but for what it has inherited."""

    version_number: int
    spec: JobSpec
    seed: int
    owner: str | None
    inherited: Inheritance | None = None
    hardware: HardwareKind | None = None
    job_id_prefix: str = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRespecified:
    """The specification changed; a new or an earlier version may have become the current one.

    ``inherited`` is what a new version knows before its first run; None: nothing.
    """

    version_number: int
    spec: JobSpec
    seed: int
    inherited: Inheritance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceOpened:
    """A model is due."""

    recurrence_id: str
    recurrence_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A training run began, with this batch size and for this reason. ``mark`` is the policy's; see Choice.

    ``silence_s`` is that of the trial.
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
    bound: float | None
    started_at: datetime
    learning_rate: LearningRate | None = None
    mark: str = ""
    silence_s: float | None = None

    @property
    def trial(self) -> Trial:
        """The trial as it begins."""
        return Trial(
            trial_number=self.trial_number,
            trial_id=self.trial_id,
            version_number=self.version_number,
            recurrence_id=self.recurrence_id,
            attempt=self.attempt,
            batch_size=self.batch_size,
            hardware=self.hardware,
            reason=self.reason,
            is_unbounded=self.is_unbounded,
            bound=self.bound,
            started_at=self.started_at,
            learning_rate=self.learning_rate,
            silence_s=self.silence_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReported:
    """A training evaluated its model. ``is_fill_in``: a lower epoch that arrived late, recorded only.

    ``is_profiling``: power limits were profiled since the report before; ``cost`` [J] leaves out what that added.
    """

    trial_number: int
    epoch: float
    time_s: float
    energy_j: float | None
    metric: float
    cost: float
    bound: float | None
    is_journalled: bool = False
    is_fill_in: bool = False
    is_profiling: bool = False

    @property
    def report(self) -> EpochReport:
        """What the training reported."""
        return EpochReport(
            epoch=self.epoch,
            time_s=self.time_s,
            energy_j=self.energy_j,
            metric=self.metric,
            is_profiling=self.is_profiling,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSuspended:
    """A lease lapsed, or the training has ended with a checkpoint that it may resume from."""

    trial_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResumed:
    """A suspended trial has sent something again."""

    trial_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    """A trial has its outcome. ``learnt_cost`` [J] is what its batch size learns from it; None: nothing.

    ``learnt`` is what the policy has fitted to it and will remember; None: nothing.

    ``is_failure``: its batch size failed by it; in Pruning a convergence above the bound is one too. ``is_stop``: a
    judgement has ended it as failed, and its training has not acknowledged that yet.
    """

    trial_number: int
    outcome: Outcome
    reason: str
    cost: float
    time_s: float
    energy_j: float
    bound: float | None
    is_over_bound: bool
    is_failure: bool
    learnt_cost: float | None
    ended_at: datetime
    learnt: PolicyData | None = None
    is_stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LateResult:
    """A trial has a result after all: it was given up, or its training never knew that it was stopped. It is learnt.

    ``recorded_outcome`` is what its trial had ended as.
    """

    trial_number: int
    outcome: Outcome
    reason: str
    cost: float
    time_s: float
    energy_j: float
    bound: float | None
    is_over_bound: bool
    is_failure: bool
    learnt_cost: float | None
    learnt: PolicyData | None = None
    recorded_outcome: Outcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAcknowledged:
    """A training knows that it was stopped: what it says of its end from now on changes nothing."""

    trial_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWithdrawn:
    """A training never knew that it was stopped, and went on: what the stop has taught is forgotten."""

    trial_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """Costs have risen or fallen: the reference and the windows begin anew with this trial.

    ``old_reference`` [J]: what a run should have cost at most, or was expected to cost, until then.
    """

    version_number: int
    hardware_key: str
    trial_number: int
    cost: float
    old_reference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNeeded:
    """A recurrence has ended without a model, at least the third in a row: somebody should look at the job.

    Until a training reaches the target a recurrence is now one training.
    """

    version_number: int
    hardware_key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceEnded:
    """A recurrence is over, with a model or without one.

    ``version_number`` and ``hardware_key`` are those of its last trial where no attempt was left; None: it ended with a
    model, or was abandoned.
    """

    recurrence_id: str
    has_model: bool
    trial_number: int | None
    reason: str
    version_number: int | None = None
    hardware_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeAllowed:
    """An operator lifted the infeasibility of a batch size on these hardware kinds."""

    batch_size: int
    hardware_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerProfiled:
    """Power and throughput of a batch size were measured under several power limits."""

    batch_size: int
    hardware: HardwareKind
    measurements: tuple[PowerMeasurement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedEpochCost:
    """What an epoch with a batch size would cost, as probed: [J], and its natural logarithm with its variance."""

    batch_size: int
    cost: float
    ln_cost: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCostsProbed:
    """Epoch costs were probed in the course of a trial with ``batch_size``, which took ``time_s`` and ``energy_j``.

    The trial's own totals leave that out. Steps with the batch sizes ``out_of_memory`` did not fit. ``month``: by UTC.
    """

    trial_number: int
    version_number: int
    hardware_key: str
    batch_size: int
    month: str
    probes: tuple[ProbedEpochCost, ...]
    out_of_memory: tuple[int, ...]
    time_s: float
    energy_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGranted:
    """A login may use the job from now on as ``right`` says; None: no longer."""

    login: str
    right: Right | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGiven:
    """The job has another owner."""

    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDeleted:
    """A job was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshotted:
    """History before this event was exported and removed; ``state`` is the stored snapshot as it stood."""

    state: Mapping[str, Any]


CommonEvent = (
    JobRegistered
    | JobRespecified
    | RecurrenceOpened
    | TrialStarted
    | EpochReported
    | TrialSuspended
    | TrialResumed
    | TrialEnded
    | LateResult
    | StopAcknowledged
    | StopWithdrawn
    | ChangePoint
    | AttentionNeeded
    | RecurrenceEnded
    | BatchSizeAllowed
    | PowerProfiled
    | EpochCostsProbed
    | JobGranted
    | JobGiven
    | JobDeleted
    | JobSnapshotted
)
"""Every event but those that policies have of their own."""


class PolicyEvent(Protocol):
    """An event of a policy's own, a frozen dataclass; ``sentence`` says what happened, for people."""

    @property
    def version_number(self) -> int: ...
    @property
    def sentence(self) -> str: ...


Event = CommonEvent | PolicyEvent
