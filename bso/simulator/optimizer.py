"""A job in memory, decided on command by command by the production rules, under a virtual clock."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeVar

from bso.domain.commands import (
    BeginTrial,
    Command,
    FinishTrial,
    PowerMeasurement,
    RegisterJob,
    ReportEpoch,
    ReportEpochCosts,
    ReportPowerProfile,
)
from bso.domain.decide import Context, Known, Rules, decide, facts_for
from bso.domain.events import ChangePoint, PowerProfiled
from bso.domain.hardware import HardwareKind
from bso.domain.job import Job
from bso.domain.job_spec import JobSpec
from bso.domain.policies import policy_named
from bso.domain.policy import Outlook
from bso.domain.replies import (
    EpochCostsRecorded,
    EpochJudged,
    PowerProfileRecorded,
    Problem,
    Registered,
    TrialBegun,
    TrialFinished,
)
from bso.domain.trial import Outcome
from bso.simulator.errors import InvalidSimulation
from bso.simulator.run import BestKnown

JOB_ID = "simulated"
_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
_RULES = Rules()
_NOTHING = Known()
_Reply = TypeVar("_Reply")


class SimulatedJob:
    """Holds the state between two commands, as a store does. Raises InvalidSimulation where a command is refused.

    ``change_points`` counts the changes that the policy has reported so far.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._job = Job(job_id=JOB_ID)
        self._numbers = count(1)
        self.change_points = 0
        self._profiled: list[PowerProfiled] = []
        self.register(spec, 0.0)

    @property
    def spec(self) -> JobSpec:
        """The specification as it is registered."""
        return self._job.spec

    def outlook(self, target_metric: float, hardware: HardwareKind) -> Outlook:
        """What the policy makes now of the batch sizes on some hardware, under the version with this target metric."""
        version = next(one for one in self._job.versions.values() if one.spec.target_metric == target_metric)
        knowledge = version.knowledge.get(hardware.key)
        if knowledge is None:
            return Outlook(best_batch_size=None, expected={})
        return policy_named(self.spec.policy).outlook(version, knowledge)

    def best_known(self, target_metric: float, hardware: HardwareKind) -> BestKnown:
        """What it takes for the best batch size there."""
        outlook = self.outlook(target_metric, hardware)
        if outlook.best_batch_size is None:
            return BestKnown(batch_size=self.spec.default_batch_size, expected_cost=None)
        expected = outlook.expected.get(outlook.best_batch_size)
        cost = None if expected is None else expected.cost
        return BestKnown(batch_size=outlook.best_batch_size, expected_cost=cost)

    def register(self, spec: Mapping[str, Any], now_s: float) -> None:
        """Register the job, or change what is registered: another target metric makes, or resumes, another version."""
        self._send(RegisterJob(spec=spec), now_s, Registered)

    def begin(self, recurrence_id: str, hardware: HardwareKind, now_s: float) -> TrialBegun:
        """Begin a trial of the version that was registered last."""
        command = BeginTrial(hardware=hardware, recurrence_id=recurrence_id)
        return self._send(command, now_s, TrialBegun)

    def report(self, report: ReportEpoch, now_s: float) -> EpochJudged:
        """Report an epoch and be judged."""
        judged = self._send(report, now_s, EpochJudged)
        if judged.should_stop:
            self._job = self._job.without_ended_trials()
        return judged

    def report_epoch_costs(self, report: ReportEpochCosts, now_s: float) -> None:
        """Report what was probed in the course of a trial."""
        self._send(report, now_s, EpochCostsRecorded)

    def finish(self, begun: TrialBegun, outcome: Outcome, reason: str, now_s: float) -> TrialFinished:
        """Say how a trial ended that has reached neither its target nor a bound."""
        command = FinishTrial(trial_number=begun.trial_number, trial_id=begun.trial_id, outcome=outcome, reason=reason)
        finished = self._send(command, now_s, TrialFinished)
        self._job = self._job.without_ended_trials()
        return finished

    def record_power_profile(
        self, batch_size: int, hardware: HardwareKind, measurements: tuple[PowerMeasurement, ...], now_s: float
    ) -> None:
        """Record what was measured under several power limits: later trials of the batch size need not measure."""
        command = ReportPowerProfile(batch_size=batch_size, hardware=hardware, measurements=measurements)
        self._send(command, now_s, PowerProfileRecorded)

    def _send(self, command: Command, now_s: float, expected: type[_Reply]) -> _Reply:
        command_id = f"00000000-0000-7000-8000-{next(self._numbers):012x}"
        facts = facts_for(self._job, command, _NOTHING, since=self._profiled)
        context = Context(command_id=command_id, user=None, now=_moment(now_s), rules=_RULES)
        decision = decide(self._job, command, facts, context)
        self._job = decision.job
        self._profiled += (event for event in decision.events if isinstance(event, PowerProfiled))
        self.change_points += sum(isinstance(event, ChangePoint) for event in decision.events)
        reply = decision.reply
        if isinstance(reply, Problem):
            raise InvalidSimulation(f"{reply.title}: {reply.detail}")
        assert isinstance(reply, expected), f"expected {expected.__name__}, got {reply}"
        return reply


def _moment(now_s: float) -> datetime:
    try:
        return _BEGINNING + timedelta(seconds=now_s)
    except OverflowError as error:
        raise InvalidSimulation(
            f"virtual time has come to {now_s:g} s, which no calendar holds: epochs take too long, or starts are too "
            "far apart"
        ) from error
