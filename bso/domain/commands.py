"""Commands: what a training, an operator or a worker asks for. Imperative, each addressed to one job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from bso.domain.hardware import HardwareKind
from bso.domain.learning_rate import LearningRate
from bso.domain.rights import Right
from bso.domain.trial import Outcome


class OnConflict(Enum):
    """What to do when a job is registered with another identity."""

    NEW_VERSION = "new_version"  # start, or resume, the version with this identity, and warn
    RAISE = "raise"  # refuse, naming the fields that differ
    REFUSE_CHANGES = "refuse_changes"  # refuse any other value of the spec, the hardware, the prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterJob:
    """Register a job or change its specification. ``spec`` holds only what the user set, by field name.

    Without a job_id in the request, one is made from ``job_id_prefix`` and the command_id. A new version of a job
    inherits what its predecessor knew, unless ``inherit`` is False; ``like`` names another job from which it, or a new
    job, inherits instead. ``hardware`` is recorded with a new job whose clients say only here what they train on.
    ``defaults`` are further fields of the specification, for a new job only. One that ``is_late`` was kept while the
    optimizer was out of reach: it registers no job again that was deleted.
    """

    spec: Mapping[str, Any]
    job_id_prefix: str = "job"
    on_conflict: OnConflict = OnConflict.NEW_VERSION
    inherit: bool = True
    like: str | None = None
    hardware: HardwareKind | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    is_late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTrial:
    """Begin a training run, and ask for its batch size.

    Without ``recurrence_id`` the trial joins the oldest open recurrence that has no running trial, else it opens
    one. ``batch_size`` records a choice that a client out of reach has made itself; ``replaces`` is then the
    command_id of the request that it gave up. ``learning_rate`` is what the training scales its rate by, if it says so.
    A client that cannot renew leases says ``renews_lease`` False: its trial may stay silent for longer.
    """

    hardware: HardwareKind
    recurrence_id: str | None = None
    batch_size: int | None = None
    replaces: str | None = None
    learning_rate: LearningRate | None = None
    renews_lease: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportEpoch:
    """Report an evaluation. Cumulative ``epoch`` (float), ``time_s``, ``energy_j`` (None: not measured), ``metric``.

    A journalled report was kept while the optimizer was out of reach: it is recorded, never judged. With
    ``is_profiling`` power limits were profiled since the report before: the cost leaves out what that added.
    A gateway whose clients know no trial_id leaves it empty, and may name the trial's ``batch_size``. Such clients
    report an epoch once for each rank: the first report of an epoch counts.
    """

    trial_number: int
    trial_id: str
    epoch: float
    time_s: float
    energy_j: float | None
    metric: float
    is_journalled: bool = False
    is_profiling: bool = False
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishTrial:
    """Say how a training ended. Time and energy since on_train_begin, None: as last reported.

    A live training cannot declare itself converged or too costly: it reports the epoch, and is judged. Only a
    journalled finish carries such an outcome, with the ``bound`` that the client used. An interrupted training that
    has a checkpoint says ``may_resume``: its trial is suspended, not ended.
    A gateway may leave the trial_id empty, as in ReportEpoch.
    """

    trial_number: int
    trial_id: str
    outcome: Outcome
    reason: str = ""
    time_s: float | None = None
    energy_j: float | None = None
    bound: float | None = None
    is_journalled: bool = False
    may_resume: bool = False
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewLease:
    """Say that a training is alive; wakes a suspended trial up. Idempotent, leaves no event unless it wakes.

    With ``is_resumption`` the training goes on from a checkpoint, and also asks for its batch size's power profile.
    """

    trial_number: int
    trial_id: str
    is_resumption: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireLease:
    """Suspend, or after the resume window end, a trial whose lease still ends at ``lease_expires_at``."""

    trial_number: int
    trial_id: str
    lease_expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerMeasurement:
    """Average power [W] and throughput [samples/s] of all GPUs together, under one power limit [W] of each GPU."""

    power_limit_w: float
    average_power_w: float
    samples_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPowerProfile:
    """Record what was measured while the power limit was tuned for one batch size."""

    batch_size: int
    hardware: HardwareKind
    measurements: tuple[PowerMeasurement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCostProbe:
    """What an epoch with a batch size would take: seconds, and joules of all devices (None: not measured).

    It was measured over a few training steps, without training anything. ``variance`` is that of the logarithm of both
    that comes from so few steps.
    """

    batch_size: int
    time_s: float
    energy_j: float | None
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportEpochCosts:
    """Report what epochs with other batch sizes would cost, as probed in the course of a trial.

    ``out_of_memory`` are batch sizes whose steps did not fit. ``time_s`` and ``energy_j`` are what this probing took,
    and no part of what the trial reports.
    """

    trial_number: int
    trial_id: str
    probes: tuple[EpochCostProbe, ...] = ()
    out_of_memory: tuple[int, ...] = ()
    time_s: float = 0.0
    energy_j: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowBatchSize:
    """Lift the infeasibility of a batch size, on one hardware kind (its key) or on all."""

    batch_size: int
    hardware_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteJob:
    """Delete a job: running trials are cancelled, its numbers stay taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantJob:
    """Let a login use a job that it does not own; ``right`` None takes away what it was granted."""

    login: str
    right: Right | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveJob:
    """Make another login the owner of a job."""

    login: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeJob:
    """Ask for the state of a job. Changes nothing."""


Command = (
    RegisterJob
    | BeginTrial
    | ReportEpoch
    | FinishTrial
    | RenewLease
    | ExpireLease
    | ReportPowerProfile
    | ReportEpochCosts
    | AllowBatchSize
    | DeleteJob
    | GrantJob
    | GiveJob
    | DescribeJob
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A command with its address: which job, under which command_id (UUID), and the login that sent it, if known.

    A gateway sends commands ``on_behalf_of`` its own users; where it is believed, ``user`` is that one.
    """

    command_id: str
    job_id: str
    command: Command
    user: str | None = None
    on_behalf_of: str | None = None
    is_from_gateway: bool = False
    trace: Mapping[str, str] = field(default_factory=dict)


TrialCommand = ReportEpoch | FinishTrial | RenewLease | ExpireLease | ReportEpochCosts
"""Those that are about one trial."""
EXPIRING = (BeginTrial, DescribeJob)
"""Commands whose answer is worthless after the client's deadline; all others never expire."""
FACTS = (ReportEpoch, FinishTrial, ReportPowerProfile, ReportEpochCosts)
"""Commands that state facts, true whenever they are decided, and whose senders go on. Senders of all others wait for
the answer, and are asked to send them again: a deletion, for example, must not come after what came after it."""
