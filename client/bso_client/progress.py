"""What the client knows of one training: plain data, which the user's thread reads and the protocol writes."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from bso.domain.commands import PowerMeasurement
from bso.domain.cost import cost_of
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import JobSpec
from bso.domain.learning_rate import LearningRate
from bso.domain.profiling import Profiled, Totals, undistorted
from bso.domain.replies import EpochJudged, TrialBegun
from bso.domain.trial import FAILURES, EpochReport, Outcome
from bso_client.resumption import Resumption


@dataclass(slots=True, kw_only=True)
class Progress:
    """One training. Without a trial_number it has begun out of the optimizer's reach and is registered later."""

    batch_size: int
    reason: str
    spec: JobSpec
    hardware: HardwareKind
    attempt: int = 1
    is_last_attempt: bool = False
    trial_number: int | None = None
    trial_id: str | None = None
    recurrence_id: str | None = None
    lease_s: float = 600.0
    bound: float | None = None
    learning_rate: LearningRate | None = None
    power_profile: tuple[PowerMeasurement, ...] = ()  # of this batch size on this hardware kind, as last heard of
    reports: int = 0
    totals: Totals = Totals(epoch=0.0, time_s=0.0, energy_j=0.0)
    profiled: Profiled = Profiled()
    is_profiling: bool = False  # power limits were profiled since the last report that was told
    epoch: float = 0.0
    metric: float | None = None
    nonfinite_metrics_in_a_row: int = 0
    cost: float = 0.0
    outcome: Outcome | None = None
    outcome_reason: str = ""
    should_retry: bool = False
    resumption: Resumption | None = None  # of a trial that goes on from a checkpoint
    is_refused: bool = False  # the optimizer does not know this trial, or does not take its reports

    @property
    def has_ended(self) -> bool:
        """Whether there is an outcome."""
        return self.outcome is not None

    @property
    def has_failed(self) -> bool:
        """Whether the batch size failed."""
        return self.outcome in FAILURES

    def is_known(self, epoch: float) -> bool:
        """Whether the optimizer had heard of this epoch before the training was resumed."""
        return self.resumption is not None and self.resumption.knows(epoch)

    def become(self, other: Progress) -> None:
        """Take over everything that is known of the same training elsewhere."""
        for field in fields(self):
            setattr(self, field.name, getattr(other, field.name))

    def take(self, report: EpochReport) -> None:
        """Add a report that was just made."""
        self.reports += 1
        self.epoch = report.epoch
        self.metric = report.metric
        is_number = math.isfinite(report.metric)
        self.nonfinite_metrics_in_a_row = 0 if is_number else self.nonfinite_metrics_in_a_row + 1
        reached = Totals(epoch=report.epoch, time_s=report.time_s, energy_j=report.energy_j or 0.0)
        if report.is_profiling:
            self.profiled = self.profiled.plus(self.totals, reached)
        self.totals = reached
        reached = undistorted(reached, self.profiled)
        self.cost = cost_of(
            energy_j=reached.energy_j,
            time_s=reached.time_s,
            eta_knob=self.spec.eta_knob,
            max_power_w=self.hardware.max_power_w,
        )

    def begun(self, reply: TrialBegun) -> None:
        """The optimizer has registered the trial."""
        self.trial_number, self.trial_id = reply.trial_number, reply.trial_id
        self.recurrence_id, self.attempt = reply.recurrence_id, reply.attempt
        self.is_last_attempt, self.bound = reply.is_last_attempt, reply.bound
        self.lease_s, self.spec = reply.lease_s, reply.spec
        self.power_profile = reply.power_profile or self.power_profile

    def judged(self, reply: EpochJudged) -> None:
        """The optimizer has judged a report. A verdict that comes after an end changes nothing."""
        self.bound = reply.bound
        if self.has_ended:
            return
        self.cost = reply.cost
        if reply.should_stop:
            self.end(reply.outcome or Outcome.NOT_CONVERGED, reply.reason, should_retry=reply.should_retry)

    def end(self, outcome: Outcome, reason: str, *, should_retry: bool) -> None:
        """Note the outcome; the first one stands."""
        if not self.has_ended:
            self.outcome, self.outcome_reason, self.should_retry = outcome, reason, should_retry

    def forget_end(self) -> None:
        """Forget an end that came too late to be one."""
        self.outcome, self.outcome_reason, self.should_retry = None, "", False

    def may_retry_alone(self, outcome: Outcome) -> bool:
        """Whether another attempt is due, as far as can be known without asking."""
        return outcome in FAILURES and not self.is_last_attempt


def progress_of(reply: TrialBegun, hardware: HardwareKind) -> Progress:
    """The beginning of a trial that the optimizer has just registered."""
    progress = Progress(batch_size=reply.batch_size, reason=reply.reason, spec=reply.spec, hardware=hardware)
    progress.begun(reply)
    return progress
