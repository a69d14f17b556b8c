"""What the tests of the domain are made of: hardware, requests, and a job whose life a test writes step by step."""

import json
import math
import os
import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import hypothesis

from bso.domain import commands as do
from bso.domain.commands import Command, Request
from bso.domain.decide import Context, Decision, Known, Rules, decide, facts_for
from bso.domain.events import Event
from bso.domain.evolve import fold
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.job import Job
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import Knowledge, reference_of
from bso.domain.policies import policy_named
from bso.domain.replies import EpochJudged, Problem, Registered, Reply, TrialBegun, TrialFinished
from bso.domain.trial import Outcome, Trial
from bso.policies.pruning_thompson.memory import NAME as PRUNING_THOMPSON
from bso.policies.pruning_thompson.memory import PruningState, Stage, state_on
from bso.schema.codec import dump, job_from_state, state_of

T = TypeVar("T")

A100 = HardwareKind(gpu_model="A100", max_power_w=400.0, energy_method=EnergyMethod.NVML_COUNTER, memory_mib=81920)
V100 = HardwareKind(gpu_model="V100", max_power_w=250.0, energy_method=EnergyMethod.MONITOR, memory_mib=16384)
NOT_HERE = {hypothesis.Phase.explain}
THE_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SIZES = (16, 32, 64, 128, 256)


def searching(examples: int, **settings: Any) -> hypothesis.settings:
    """How hard a property is searched: the same examples every time, or many fresh ones (BSO_TEST_SEARCH=nightly)."""
    is_nightly = os.environ.get("BSO_TEST_SEARCH") == "nightly"
    return hypothesis.settings(
        max_examples=examples * 20 if is_nightly else examples,
        derandomize=not is_nightly,
        database=None,
        deadline=None,
        phases=[phase for phase in hypothesis.Phase if phase not in NOT_HERE],
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
        **settings,
    )


def command_id(number: int) -> str:
    """A command_id that a test can count on."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, str(number)))


@dataclass(kw_only=True)
class JobLife:
    """A job that is decided on command by command, as the engine does it but in memory.

    ``is_stateless``: between two commands the job goes through its stored form, as with several workers.
    """

    job_id: str = "job"
    rules: Rules = field(default_factory=Rules)
    is_stateless: bool = False
    now: datetime = THE_EPOCH
    job: Job | None = None
    history: list[Event] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    sent: int = 0
    rows: dict[int, Trial] = field(default_factory=dict)
    siblings: dict[str, Job] = field(default_factory=dict)
    jobs_owned: dict[str, int] = field(default_factory=dict)

    def send(
        self,
        command: Command,
        *,
        user: str | None = None,
        as_command: str | None = None,
        is_from_gateway: bool = False,
    ) -> Reply:
        """Decide a command, keep what happened, and return the reply."""
        self.sent += 1
        self.now += timedelta(seconds=1)
        request = Request(
            command_id=as_command or command_id(self.sent),
            job_id=self.job_id,
            command=command,
            user=user,
            is_from_gateway=is_from_gateway,
        )
        decision = self.decide(request)
        self.job = decision.job
        self.rows.update(decision.job.trials)
        self.history += decision.events
        self.replies.append(decision.reply)
        return decision.reply

    def decide(self, request: Request) -> Decision:
        """What would follow from a request now."""
        job = self._loaded()
        rows = {(self.job_id, number): row for number, row in self.rows.items()}
        known = Known(trials=rows, other_jobs=self.siblings, jobs_owned=self.jobs_owned)
        facts = facts_for(job, request.command, known, since=self.history, user=request.user)
        context = Context(
            command_id=request.command_id,
            user=request.user,
            now=self.now,
            rules=self.rules,
            is_from_gateway=request.is_from_gateway,
        )
        return decide(job, request.command, facts, context)

    def _loaded(self) -> Job:
        if self.job is None:
            return Job(job_id=self.job_id)
        job = self.job.without_ended_trials()
        if not self.is_stateless:
            return job
        stored = json.loads(state_of(job))
        return replace(job_from_state(job.job_id, job.last_seq, stored), trials=job.trials)

    # What a test says.

    def register(
        self,
        *,
        user: str | None = None,
        on_conflict: do.OnConflict = do.OnConflict.NEW_VERSION,
        inherit: bool = True,
        like: str | None = None,
        **spec: Any,
    ) -> Registered:
        """Register the job; batch sizes 16 to 256 with default 64 unless said otherwise."""
        if self.job is None:
            spec = {"batch_sizes": list(SIZES), "default_batch_size": 64, "mab_seed": 1, **spec}
        command = do.RegisterJob(spec=spec, on_conflict=on_conflict, inherit=inherit, like=like)
        return expect(Registered, self.send(command, user=user))

    def begin(self, recurrence_id: str | None = None, *, hardware: HardwareKind = A100, **more: Any) -> TrialBegun:
        """Begin a trial."""
        return expect(TrialBegun, self.send(do.BeginTrial(hardware=hardware, recurrence_id=recurrence_id, **more)))

    def report(
        self,
        trial: TrialBegun,
        *,
        cost: float,
        metric: float = 0.0,
        epoch: float | None = None,
        **more: Any,
    ) -> EpochJudged:
        """Report an epoch at which the trial has cost this much in all (half of it energy)."""
        return expect(EpochJudged, self.send(self.reporting(trial, cost, metric, epoch, **more)))

    def reporting(
        self, trial: TrialBegun, cost: float, metric: float = 0.0, epoch: float | None = None, **more: Any
    ) -> do.ReportEpoch:
        """The command that reports an epoch."""
        row = self.rows[trial.trial_number]
        return do.ReportEpoch(
            trial_number=trial.trial_number,
            trial_id=trial.trial_id,
            epoch=row.epoch + 1.0 if epoch is None else epoch,
            time_s=cost / row.hardware.max_power_w,
            energy_j=cost,
            metric=metric,
            **more,
        )

    def finish(self, trial: TrialBegun, outcome: Outcome, reason: str = "", **more: Any) -> TrialFinished:
        """Let the training say how it ended."""
        return expect(TrialFinished, self.send(self.finishing(trial, outcome, reason, **more)))

    def finishing(self, trial: TrialBegun, outcome: Outcome, reason: str = "", **more: Any) -> do.FinishTrial:
        """The command that finishes a trial."""
        return do.FinishTrial(
            trial_number=trial.trial_number, trial_id=trial.trial_id, outcome=outcome, reason=reason, **more
        )

    def converge(self, trial: TrialBegun, cost: float) -> EpochJudged:
        """Reach the target with this cost, all in one epoch."""
        return self.report(trial, cost=cost, metric=trial.spec.target_metric)

    def run_out_of_memory(self, trial: TrialBegun) -> TrialFinished:
        """End a trial as a training does that runs out of memory."""
        return self.finish(trial, Outcome.INFEASIBLE, "out_of_memory: CUDA out of memory")

    def give_up(self, trial: TrialBegun) -> TrialFinished:
        """End a trial without having reached the target."""
        return self.finish(trial, Outcome.NOT_CONVERGED, "the training gave up")

    def exceed(self, trial: TrialBegun) -> EpochJudged:
        """Report a cost just above the trial's bound."""
        assert trial.bound is not None, "an unbounded trial cannot become too expensive"
        return self.report(trial, cost=trial.bound * 1.01)

    def run(self, recurrence_id: str | None, costs: dict[int, float], *, hardware: HardwareKind = A100) -> TrialBegun:
        """Begin a trial and let it converge at the cost of its batch size."""
        trial = self.begin(recurrence_id, hardware=hardware)
        self.converge(trial, costs[trial.batch_size])
        return trial

    def lapse(self, trial: TrialBegun) -> Reply:
        """Let the lease of a trial lapse."""
        lease = self.row(trial).lease_expires_at
        assert lease is not None
        self.now = max(self.now, lease)
        return self.send(
            do.ExpireLease(trial_number=trial.trial_number, trial_id=trial.trial_id, lease_expires_at=lease)
        )

    def enter_mab(self, costs: dict[int, float], recurrence: str = "exploring") -> None:
        """Run recurrences until the stage of sampling begins."""
        for number in range(100):
            if self.spec.policy != PRUNING_THOMPSON or self.pruning().stage is Stage.MAB:
                return
            trial = self.begin(f"{recurrence}-{number}")
            while trial.batch_size not in costs:
                self.give_up(trial)
                trial = self.begin(f"{recurrence}-{number}")
            self.converge(trial, costs[trial.batch_size])
        raise AssertionError("the exploration does not end")

    # What a test looks at.

    def row(self, trial: TrialBegun) -> Trial:
        """A trial as it stands."""
        return self.rows[trial.trial_number]

    def known(self, hardware: HardwareKind = A100) -> Knowledge:
        """What the job's current version knows on a hardware kind."""
        assert self.job is not None
        return self.job.version.knowledge_on(hardware)

    def pruning(self, hardware: HardwareKind = A100) -> PruningState:
        """Where the exploration of pruning_thompson stands on a hardware kind."""
        return state_on(self.known(hardware), self.spec)

    def reference(self, hardware: HardwareKind = A100) -> float | None:
        """The cheapest converged cost in the window on a hardware kind [J]."""
        known = self.known(hardware)
        return reference_of(known, self.spec, policy_named(self.spec.policy).excluded(known))

    @property
    def spec(self) -> JobSpec:
        """The current specification."""
        assert self.job is not None
        return self.job.spec

    def happened(self, event_type: type[T]) -> list[T]:
        """The events of one type, in order."""
        return [event for event in self.history if isinstance(event, event_type)]

    def folded(self) -> Job:
        """The job that the history describes."""
        return fold(self.job_id, self.history)


def expect(reply_type: type[T], reply: object) -> T:
    """The reply, which must be of this type."""
    assert isinstance(reply, reply_type), f"expected {reply_type.__name__}, got {reply}"
    return reply


def problem_of(reply: object) -> Problem:
    """The reply, which must be a refusal."""
    return expect(Problem, reply)


def as_json(value: object) -> str:
    """A value as JSON text, in which NaN equals NaN and sets have an order."""
    return json.dumps(json.loads(dump(value), object_hook=_sorted_sets), sort_keys=True)


def without_leases(job: Job) -> Job:
    """A job without the leases of its trials, which are not part of history."""
    trials = {number: replace(trial, lease_expires_at=None) for number, trial in job.trials.items()}
    return replace(job, trials=dict(sorted(trials.items())))


def nonfinite_numbers(value: Any, path: str = "") -> list[str]:
    """Where a value holds NaN or an infinity."""
    if isinstance(value, float):
        return [] if math.isfinite(value) else [path]
    if isinstance(value, dict):
        return [place for name, inner in value.items() for place in nonfinite_numbers(inner, f"{path}.{name}")]
    if isinstance(value, list | tuple | set | frozenset):
        return [place for index, inner in enumerate(value) for place in nonfinite_numbers(inner, f"{path}.{index}")]
    if hasattr(value, "__dataclass_fields__"):
        return [
            place
            for name in value.__dataclass_fields__
            for place in nonfinite_numbers(getattr(value, name), f"{path}.{name}")
        ]
    return []


def _sorted_sets(parsed: dict[str, Any]) -> dict[str, Any]:
    for name in ("failed", "pruned"):
        if isinstance(parsed.get(name), list):
            parsed[name] = sorted(parsed[name])
    return parsed
