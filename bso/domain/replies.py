"""Replies: what the sender of a command receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bso.domain.commands import PowerMeasurement
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import JobSpec
from bso.domain.learning_rate import LearningRate
from bso.domain.rights import Right
from bso.domain.savings import SavedInMonth
from bso.domain.trial import Outcome, TrialState


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The job is registered as ``spec`` says; ``warnings`` are sentences for the user."""

    job_id: str
    version_number: int
    is_new: bool
    spec: JobSpec
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestPowerProfile:
    """What was measured of ``batch_size``, the nearest one to a trial's that has a power profile on its hardware."""

    batch_size: int
    measurements: tuple[PowerMeasurement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialBegun:
    """Train with ``batch_size``. The client keeps target, max_epochs and ``bound`` [J] in case we are out of reach.

    ``lease_s``: how long the trial may stay silent. ``spec`` is the job's specification for this trial.
    ``power_profile``: what was measured of this batch size on this hardware kind, under several power limits. Where
    nothing was, and the batch size has not converged yet, ``nearest_power_profile`` has what was measured of another.
    ``to_probe``: batch sizes whose epoch costs the policy wants to know, the most wanted first.
    """

    trial_number: int
    trial_id: str
    recurrence_id: str
    attempt: int
    batch_size: int
    reason: str
    is_last_attempt: bool
    bound: float | None
    lease_s: float
    spec: JobSpec
    warnings: tuple[str, ...] = ()
    power_profile: tuple[PowerMeasurement, ...] = ()
    nearest_power_profile: NearestPowerProfile | None = None
    to_probe: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochJudged:
    """Whether to stop; if so the trial has ended with ``outcome``. ``cost`` and ``bound`` in J.

    ``should_retry``: the recurrence still wants a model, so begin another trial. ``warnings`` are for the user.
    ``is_over_bound``: the target was reached at a higher cost than ``beta_knob`` times the cheapest converged one.
    """

    should_stop: bool
    reason: str
    cost: float
    bound: float | None
    outcome: Outcome | None = None
    should_retry: bool = False
    warnings: tuple[str, ...] = ()
    is_over_bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """The trial has ended, now or before; ``outcome`` is what was recorded first. ``warnings`` are for the user."""

    outcome: Outcome
    reason: str
    cost: float
    should_retry: bool
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewed:
    """The trial goes on; also what a resumed training needs to know of it, with power profiles if it asked for them.

    ``epoch``, ``time_s`` and ``energy_j`` are those of its last report, 0 before the first one.
    """

    trial_number: int
    recurrence_id: str
    batch_size: int
    epoch: float
    time_s: float
    energy_j: float
    bound: float | None
    lease_s: float
    power_profile: tuple[PowerMeasurement, ...] = ()
    nearest_power_profile: NearestPowerProfile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseExpired:
    """What became of the trial; its old state if the lease had been renewed meanwhile."""

    state: TrialState


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerProfileRecorded:
    """The measurements are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCostsRecorded:
    """What was probed is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedAgain:
    """The batch size may be offered again on these hardware kinds (keys)."""

    hardware_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """The job is deleted; ``cancelled_trials`` were active."""

    cancelled_trials: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RightsRecorded:
    """Whose the job is now, and what other logins may do with it."""

    owner: str | None
    grants: Mapping[str, Right] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmDescription:
    """One batch size on one hardware kind. Costs in J; the posterior is that of the mean cost.

    ``note`` says what ``status`` does not: why it is not offered at present.
    """

    batch_size: int
    status: str
    trials_with_cost: int
    convergences: int
    mean_cost: float | None
    posterior_mean: float | None
    posterior_std: float | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """How sure it is that a batch size is the best one.

    ``runs`` are those on this hardware kind whose cost is known. ``cost_noise`` is the standard deviation of ln of what
    an epoch costs between runs of a batch size; None: not known yet. ``may_save`` is the largest share of the cost
    (0.05: 5 %) that another batch size may save, with a probability of one in twenty; None: no other has converged.
    ``more_runs_pay``: whether another one is worth a run at present.
    """

    runs: int
    cost_noise: float | None
    may_save: float | None
    more_runs_pay: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KindDescription:
    """What is known on one hardware kind. ``reference`` [J] is the cheapest converged cost of the window.

    ``stage`` is that of the job's policy and ``round_number`` its round; None: it has none. ``about_costs`` says what
    the expected costs of its batch sizes are.
    ``attention`` says why the job needs attention, and what to do; empty: it does not.
    """

    hardware: str
    hardware_key: str
    stage: str | None
    round_number: int | None
    reference: float | None
    best_batch_size: int | None
    needs_attention: bool
    change_points: int
    arms: tuple[ArmDescription, ...]
    confidence: Confidence | None = None
    attention: str = ""
    about_costs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveTrialDescription:
    """A trial that has not ended. ``is_energy_assumed``: no meter was read, ``cost`` [J] goes by constant power."""

    trial_number: int
    recurrence_id: str
    batch_size: int
    state: TrialState
    epoch: float
    cost: float
    started_at: datetime
    lease_expires_at: datetime | None
    is_energy_assumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDescription:
    """One of the versions of a job, its specification in a few words."""

    version_number: int
    specification: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDescription:
    """A job as people want to see it. ``learning_rate`` is that of the last trial which named one.

    ``grants`` are what other logins than its owner's may do. ``hardware`` is what it was registered with. ``saved``:
    what all its versions saved, by month. ``versions``: the newest 20 of several, the newest first.
    """

    job_id: str
    owner: str | None
    version_number: int
    spec: JobSpec
    trials: int
    recurrences: int
    open_recurrences: tuple[str, ...]
    kinds: tuple[KindDescription, ...]
    active_trials: tuple[ActiveTrialDescription, ...]
    learning_rate: LearningRate | None = None
    grants: Mapping[str, Right] = field(default_factory=dict)
    hardware: HardwareKind | None = None
    saved: tuple[SavedInMonth, ...] = ()
    versions: tuple[VersionDescription, ...] = ()


KEPT = "kept"
"""The type of the problem that a command has to wait because its job is in trouble, and will be decided later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A refusal, after RFC 9457: a stable ``type``, a ``title``, what came and what was expected in ``detail``.

    ``fields`` names the offending fields. ``is_retryable``: the same command may succeed later, and is not worth
    sending again for ``retry_after_s``.
    """

    type: str
    title: str
    detail: str
    fields: Mapping[str, str] = field(default_factory=dict)
    is_retryable: bool = False
    retry_after_s: float | None = None
    context: Mapping[str, Any] = field(default_factory=dict)


Reply = (
    Registered
    | TrialBegun
    | EpochJudged
    | TrialFinished
    | LeaseRenewed
    | LeaseExpired
    | PowerProfileRecorded
    | EpochCostsRecorded
    | AllowedAgain
    | Deleted
    | RightsRecorded
    | JobDescription
    | Problem
)
"""Every reply."""
