"""The state of a training: a frozen value that every process of the training holds alike.

Part of it is what the training has consumed, and how one that goes on from a checkpoint continues its totals.

The life of a training (a test holds this diagram against TRANSITIONS)::

    READY    -> TRAINING   its training begins
    READY    -> ENDED      it was called off, or left, before its training began
    TRAINING -> STOPPED    the optimizer has stopped it; the training has not acknowledged that yet
    TRAINING -> ENDED      a verdict, an exception, a signal, or the end of its block
    STOPPED  -> TRAINING   a model was there when the stop came: it overrules the stop
    STOPPED  -> ENDED      the stop is acknowledged
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from bso.domain.commands import Command, EpochCostProbe, FinishTrial, PowerMeasurement, ReportEpoch, ReportEpochCosts
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import JobSpec
from bso.domain.learning_rate import LearningRate
from bso.domain.replies import LeaseRenewed, NearestPowerProfile
from bso.domain.trial import FAILURES, EpochReport, Outcome, Profiled, Totals
from bso_client.errors import TrainFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """What a training has consumed so far. ``energy_j`` is None once a part of it could not be measured."""

    time_s: float = 0.0
    energy_j: float | None = 0.0

    def plus(self, *, time_s: float, energy_j: float | None) -> Consumption:
        """This and what one more window measured."""
        total = None if self.energy_j is None or energy_j is None else self.energy_j + energy_j
        return Consumption(time_s=self.time_s + time_s, energy_j=total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What was probed at once, and the seconds and joules (None: not measured) that all of it took.

    ``is_broken``: a step has failed, and the training probes nothing more.
    """

    probes: tuple[EpochCostProbe, ...] = ()
    out_of_memory: tuple[int, ...] = ()
    time_s: float = 0.0
    energy_j: float | None = 0.0
    is_broken: bool = False

    @property
    def batch_sizes(self) -> frozenset[int]:
        """The batch sizes that were probed, or ran out of memory."""
        return frozenset(each.batch_size for each in self.probes) | frozenset(self.out_of_memory)

    def plus(self, later: Probed) -> Probed:
        """This and what was probed later."""
        probes = {each.batch_size: each for each in (*self.probes, *later.probes)}
        took = Consumption(time_s=self.time_s, energy_j=self.energy_j)
        took = took.plus(time_s=later.time_s, energy_j=later.energy_j)
        return Probed(
            probes=tuple(probes.values()),
            out_of_memory=tuple(dict.fromkeys((*self.out_of_memory, *later.out_of_memory))),
            time_s=took.time_s,
            energy_j=took.energy_j,
            is_broken=self.is_broken or later.is_broken,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """What the optimizer knows of a resumed trial, and how far the training's own totals [s], [J] are from that.

    The first pass through an epoch counts. Epochs that are trained again, because the checkpoint lies behind what was
    reported, are neither reported nor counted: each total continues from ``known``.
    """

    known: Totals
    ahead_s: float
    ahead_j: float

    def knows(self, epoch: float) -> bool:
        """Whether this epoch was reported before the training was resumed."""
        return epoch <= self.known.epoch

    def after(self, report: EpochReport) -> Resumption:
        """The resumption after an evaluation: what was consumed for epochs that are known does not count."""
        if not self.knows(report.epoch):
            return self
        return Resumption(
            known=self.known,
            ahead_s=self.known.time_s - report.time_s,
            ahead_j=self.known.energy_j - (report.energy_j or 0.0),
        )

    def counted(self, own: Consumption) -> Consumption:
        """What is to be reported for the training's own consumption."""
        energy_j = None if own.energy_j is None else max(self.known.energy_j, own.energy_j + self.ahead_j)
        return Consumption(time_s=max(self.known.time_s, own.time_s + self.ahead_s), energy_j=energy_j)


def resumption_of(reply: LeaseRenewed, saved: Consumption) -> Resumption:
    """The beginning: totals go on as saved, but never from less than what is known."""
    known = Totals(epoch=reply.epoch, time_s=reply.time_s, energy_j=reply.energy_j)
    ahead_s, ahead_j = max(0.0, known.time_s - saved.time_s), max(0.0, known.energy_j - (saved.energy_j or 0.0))
    return Resumption(known=known, ahead_s=ahead_s, ahead_j=ahead_j)


class Phase(Enum):
    """Where a training stands."""

    READY = "ready"  # it has a batch size, and nothing is measured yet
    TRAINING = "training"  # it is measured, and reports
    STOPPED = "stopped"  # the optimizer has ended it; until it acknowledges that, a model may still overrule the stop
    ENDED = "ended"  # it has an outcome that it acknowledges, or has decided itself


TRANSITIONS = frozenset(
    {
        (Phase.READY, Phase.TRAINING),
        (Phase.READY, Phase.ENDED),
        (Phase.TRAINING, Phase.STOPPED),
        (Phase.TRAINING, Phase.ENDED),
        (Phase.STOPPED, Phase.TRAINING),
        (Phase.STOPPED, Phase.ENDED),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """One training. ``key`` names it among all trainings of all processes, before it has a trial_number, too.

    Without a trial_number it has begun while the optimizer was out of reach, and is registered later. Totals are those
    of its last report; ``bound`` and ``cost`` are in J. ``consumed`` is what it had consumed at its last checkpoint.
    """

    job_id: str
    key: str
    batch_size: int
    reason: str
    spec: JobSpec
    hardware: HardwareKind
    attempt: int = 1
    is_last_attempt: bool = False
    recurrence_id: str | None = None
    trial_number: int | None = None
    trial_id: str | None = None
    learning_rate: LearningRate | None = None
    power_profile: tuple[PowerMeasurement, ...] = ()  # of this batch size on this hardware kind
    nearest_power_profile: NearestPowerProfile | None = None  # of another batch size, while this one has none
    to_probe: tuple[int, ...] = ()  # batch sizes whose epoch costs the policy wants to know
    probing_s: float = 0.0  # what probing them has taken, beside its own time
    lease_s: float = 600.0
    bound: float | None = None
    phase: Phase = Phase.READY
    has_started: bool = False  # stays after its end; one that was called off before its training began never has
    reports: int = 0
    epoch: float = 0.0
    time_s: float = 0.0
    energy_j: float = 0.0
    is_energy_complete: bool = True
    profiled: Profiled = Profiled()
    is_profiling: bool = False  # power limits were profiled since the last report that was sent
    metric: float | None = None
    nonfinite_metrics_in_a_row: int = 0
    cost: float = 0.0
    last: EpochReport | None = None
    outcome: Outcome | None = None
    outcome_reason: str = ""
    should_retry: bool = False
    is_refused: bool = False  # the optimizer does not know this trial, or does not take its reports
    is_resumed: bool = False  # it goes on from a checkpoint
    is_resumable: bool = False  # there is a checkpoint: an interruption leaves the trial to be resumed
    is_called_off: bool = False  # the loop over trials ends with it
    has_warned_of_end: bool = False
    consumed: Consumption = field(default_factory=Consumption)
    resumption: Resumption | None = None

    @property
    def totals(self) -> Totals:
        """How far it had come at its last report."""
        return Totals(epoch=self.epoch, time_s=self.time_s, energy_j=self.energy_j)

    @property
    def has_ended(self) -> bool:
        """Whether there is an outcome."""
        return self.outcome is not None

    @property
    def may_be_resumed(self) -> bool:
        """Whether it may go on from a checkpoint: it has not ended, or was interrupted."""
        return self.outcome in (None, Outcome.INTERRUPTED)

    @property
    def has_failed(self) -> bool:
        """Whether the batch size failed."""
        return self.outcome in FAILURES

    @property
    def name(self) -> str:
        """The trial in words."""
        return f"trial {'(not registered yet)' if self.trial_number is None else self.trial_number}"

    def is_known(self, epoch: float) -> bool:
        """Whether this epoch was reported before the training was resumed."""
        return self.resumption is not None and self.resumption.knows(epoch)

    def counted(self, own: Consumption) -> Consumption:
        """What is to be reported for the training's own consumption since this process began."""
        return own if self.resumption is None else self.resumption.counted(own)

    def may_retry_alone(self, outcome: Outcome) -> bool:
        """Whether another attempt is due, as far as can be known without asking."""
        return outcome in FAILURES and not self.is_last_attempt

    @property
    def failure(self) -> TrainFailed:
        """The end of a failed trial as an exception."""
        return TrainFailed(
            batch_size=self.batch_size,
            trial_number=self.trial_number,
            outcome=self.outcome or Outcome.NOT_CONVERGED,
            reason=self.outcome_reason,
            should_retry=self.should_retry,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A command to send. ``late`` is the same command as it is once nobody waits for its reply: never judged."""

    command: Command
    late: Command


Identity = tuple[int, str]
"""The number of a trial and its id, as its reports carry them."""


def addressed(command: Command, identity: Identity | None) -> Command | None:
    """A command with the identity of its trial, if it is one of a trial; None: that identity is not known."""
    if not isinstance(command, ReportEpoch | FinishTrial | ReportEpochCosts) or command.trial_id:
        return command
    return None if identity is None else replace(command, trial_number=identity[0], trial_id=identity[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What people should read. ``level`` is one of logging; ``facts`` go with the log record."""

    level: int
    action: str
    words: str
    facts: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What came of an event: the next state, what to send in this order, and what to say.

    ``is_awaited``: the training waits for the reply to the last message, which may end it.
    """

    state: TrainingState
    sends: tuple[Message, ...] = ()
    notices: tuple[Notice, ...] = ()
    is_awaited: bool = False
