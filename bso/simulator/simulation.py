"""Simulating a recurring job: events in virtual time, every decision made by the production rules."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from bso.domain.commands import PowerMeasurement, ReportEpoch, ReportEpochCosts
from bso.domain.policies import PolicyMissing, policy_named
from bso.domain.replies import EpochJudged, TrialBegun, TrialFinished
from bso.domain.trial import OUT_OF_MEMORY, Outcome
from bso.simulator import baselines
from bso.simulator.drift import NO_DRIFT, Drift
from bso.simulator.errors import InvalidSimulation
from bso.simulator.noise import NO_NOISE, Noise
from bso.simulator.optimizer import SimulatedJob
from bso.simulator.power_limits import LimitChooser, LimitSweep, steps_per_epoch
from bso.simulator.probes import Probing
from bso.simulator.problem import BatchSizeProblem, EpochPrice
from bso.simulator.run import BestKnown, Run, SimulatedTrial
from bso.simulator.workloads import Workload
from bso.simulator.world import World

MAX_TRIES = 1000
"""Trials of one recurrence, after which the simulation gives up: the policy does not find what converges."""
PROBLEM_FIELDS = ("batch_sizes", "default_batch_size", "target_metric", "higher_is_better_metric", "max_epochs")
"""Fields of the job specification that a problem sets, and the oracle goes by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """When a recurrence begins [s], None: as soon as another one ends; ``length`` scales its time and energy."""

    start_s: float | None = None
    length: float = 1.0


def simulate(
    problem: BatchSizeProblem,
    spec_overrides: Mapping[str, Any] | None = None,
    *,
    recurrences: int | None = None,
    submissions: Sequence[Submission] | None = None,
    seed: int = 0,
    overlap: int = 0,
    drift: Drift = NO_DRIFT,
    failure_rate: float = 0.0,
    noise: Noise = NO_NOISE,
    probing: Probing | None = None,
) -> Run:
    """Let a job recur, each recurrence until it has a model; ``overlap`` others run beside each one.

    ``spec_overrides`` are fields of the job specification (policy, eta_knob, beta_knob ...). ``recurrences`` None: as
    often as in the paper, 2 x batch sizes x power limits. With ``submissions`` recurrences begin when they are
    submitted instead. With ``probing`` trainings probe the epoch costs that the policy wants to know. The same
    arguments give the same run. Raises InvalidSimulation.
    """
    overrides = _checked(spec_overrides or {})
    eta_knob = float(overrides.get("eta_knob", 0.5))
    world = World(problem=problem, seed=seed, eta_knob=eta_knob, drift=drift, failure_rate=failure_rate, noise=noise)
    workload = problem.at(1).workload
    spec: dict[str, Any] = {
        "batch_sizes": problem.batch_sizes,
        "default_batch_size": problem.default_batch_size,
        "target_metric": workload.target_metric,
        "higher_is_better_metric": workload.higher_is_better_metric,
        "max_epochs": world.max_epochs(1),
        "mab_seed": world.policy_seed,
    }
    job = SimulatedJob(spec | overrides)
    planned = _back_to_back(problem, recurrences, overlap) if submissions is None else submissions
    life = _Life(world, job, planned, probing)
    return life.run()


def _back_to_back(problem: BatchSizeProblem, recurrences: int | None, overlap: int) -> list[Submission]:
    times = problem.default_recurrences if recurrences is None else recurrences
    if times < 1 or overlap < 0:
        raise InvalidSimulation(f"expected at least 1 recurrence and 0 overlaps, got {times} and {overlap}")
    return [Submission(start_s=0.0 if number <= overlap else None) for number in range(times)]


def _checked(overrides: Mapping[str, Any]) -> dict[str, Any]:
    taken = [name for name in PROBLEM_FIELDS if name in overrides]
    if taken:
        raise InvalidSimulation(
            f"{', '.join(taken)} cannot be overridden: the problem and its workload set it, and the oracle goes by it"
        )
    if "policy" in overrides:
        try:
            policy_named(overrides["policy"])
        except PolicyMissing as missing:
            raise InvalidSimulation(str(missing)) from missing
    return dict(overrides)


@dataclass(slots=True, kw_only=True)
class _Training:
    """A training that runs: what it will take, and what it has taken."""

    recurrence: int
    run: int
    begun: TrialBegun
    began_s: float
    needed: int | None
    price: EpochPrice  # of an ordinary epoch
    sweep: LimitSweep | None  # None: its power limit is known
    running: EpochPrice
    to_probe: list[int]
    length: float
    is_profiling: bool = False
    has_profiled: bool = False
    epoch: int = 0
    time_s: float = 0.0
    energy_j: float = 0.0
    probed_s: float = 0.0
    probed_j: float = 0.0


_Happening = tuple[float, int, int | _Training]
"""When, in which order among others then, and what: a recurrence begins, or an epoch of a training ends."""


class _Life:
    """The events of one job, in virtual time."""

    def __init__(
        self, world: World, job: SimulatedJob, submissions: Sequence[Submission], probing: Probing | None
    ) -> None:
        self._world = world
        self._job = job
        self._submissions = submissions
        self._probing = probing
        self._order = count()
        self._happenings: list[_Happening] = []
        self._waiting = [number for number, one in enumerate(submissions, start=1) if one.start_s is None]
        self._waiting.reverse()
        self._runs: dict[int, int] = {}
        self._openings: dict[int, int] = {}
        self._tries: dict[int, int] = {}
        self._trials: list[SimulatedTrial] = []
        self._best_known: list[BestKnown] = []

    def run(self) -> Run:
        """Everything until the last recurrence has its model."""
        for number, submission in enumerate(self._submissions, start=1):
            if submission.start_s is not None:
                self._schedule(submission.start_s, number)
        while self._happenings:
            now_s, _, what = heapq.heappop(self._happenings)
            if isinstance(what, int):
                self._open(what, now_s)
            else:
                self._end_epoch(what, now_s)
        return self._result()

    def _result(self) -> Run:
        world, job, lengths = self._world, self._job, [submission.length for submission in self._submissions]
        last = world.problem.at(len(lengths))
        return Run(
            problem=world.problem,
            policy=job.spec.policy,
            eta_knob=world.eta_knob,
            seed=world.seed,
            trials=tuple(self._trials),
            oracle=baselines.oracle(world, lengths),
            default=baselines.default(world, lengths),
            mean_costs={size: world.expected(size, len(lengths)).cost for size in world.problem.batch_sizes},
            expected=job.outlook(last.workload.target_metric, last.hardware).expected,
            best_known=tuple(self._best_known),
            change_points=job.change_points,
        )

    def _schedule(self, at_s: float, what: int | _Training) -> None:
        heapq.heappush(self._happenings, (at_s, next(self._order), what))

    def _open(self, recurrence: int, now_s: float) -> None:
        """Begin a recurrence. Where the target is another one, or trainings take longer, the user registers that."""
        target = self._world.problem.at(recurrence).workload.target_metric
        self._register({"target_metric": target, "max_epochs": self._world.max_epochs(recurrence)}, now_s)
        self._begin(recurrence, now_s)

    def _retry(self, recurrence: int, now_s: float) -> None:
        """Begin another trial, of the version of its recurrence, though others may have gone on to a new one."""
        self._register({"target_metric": self._world.problem.at(recurrence).workload.target_metric}, now_s)
        self._begin(recurrence, now_s)

    def _register(self, spec: Mapping[str, Any], now_s: float) -> None:
        """Register the job again where it is registered with something else."""
        if any(getattr(self._job.spec, name) != value for name, value in spec.items()):
            self._job.register(spec, now_s)

    def _begin(self, recurrence: int, now_s: float) -> None:
        tries = self._tries[recurrence] = self._tries.get(recurrence, 0) + 1
        if tries > MAX_TRIES:
            raise InvalidSimulation(
                f"{self._world.problem.name}: recurrence {recurrence} has no model after {MAX_TRIES} trials"
            )
        opening = self._openings.setdefault(recurrence, 1)
        name = f"recurrence-{recurrence}" if opening == 1 else f"recurrence-{recurrence}.{opening}"
        problem = self._world.problem.at(recurrence)
        begun = self._job.begin(name, problem.hardware, now_s)
        training = self._training(recurrence, begun, now_s)
        if begun.batch_size in problem.infeasible:
            self._end_trial(training, self._job.finish(begun, Outcome.INFEASIBLE, OUT_OF_MEMORY, now_s), now_s)
        else:
            self._run_epoch(training, now_s)

    def _run_epoch(self, training: _Training, now_s: float) -> None:
        price = self._next_price(training)
        factor = self._world.epoch_factor(training.begun.batch_size, training.run, training.epoch + 1)
        training.running = price if factor == 1.0 else price.scaled(factor)
        self._schedule(now_s + training.running.time_s, training)

    def _next_price(self, training: _Training) -> EpochPrice:
        """What the next epoch takes, and whether power limits are profiled in it."""
        training.is_profiling = False
        if training.sweep is None:
            return training.price
        swept = training.sweep.next_epoch()
        training.is_profiling = swept.is_profiling
        training.has_profiled |= swept.is_profiling
        price = self._world.price_under(swept.shares, training.begun.batch_size, training.recurrence)
        return price.scaled(training.length)

    def _sweep(self, begun: TrialBegun, recurrence: int, *, stretched: float) -> LimitSweep | None:
        """How the training profiles power limits; None: a profile is known, or there is nothing to profile."""
        size, problem = begun.batch_size, self._world.problem.at(recurrence)
        if begun.power_profile or size in problem.infeasible or not problem.has_power_limits(size):
            return None
        nearest = begun.nearest_power_profile
        return LimitSweep(
            problem.power_measurements(size, stretched=stretched),
            nearest=() if nearest is None else nearest.measurements,
            chooser=self._chooser(recurrence),
            steps=steps_per_epoch(size, problem.workload.samples),
        )

    def _chooser(self, recurrence: int) -> LimitChooser:
        return LimitChooser(eta_knob=self._world.eta_knob, max_power_w=self._world.problem.at(recurrence).max_power_w)

    def _price(self, size: int, profile: Sequence[PowerMeasurement], recurrence: int) -> EpochPrice:
        """An epoch under the best limit of a profile; under the best one of all where a training has none."""
        if not profile:
            return self._world.price(size, recurrence)
        return self._world.price_under({self._chooser(recurrence).best_w(profile): 1.0}, size, recurrence)

    def _training(self, recurrence: int, begun: TrialBegun, now_s: float) -> _Training:
        size = begun.batch_size
        run = self._runs[size] = self._runs.get(size, 0) + 1
        length = self._submissions[recurrence - 1].length * self._world.run_factor(size, run, recurrence)
        price = self._price(size, begun.power_profile, recurrence).scaled(length)
        usual = self._world.problem.at(recurrence).best_price(size, self._world.eta_knob)
        return _Training(
            recurrence=recurrence,
            run=run,
            begun=begun,
            began_s=now_s,
            needed=self._world.epochs_to_target(size, run, recurrence),
            price=price,
            sweep=self._sweep(begun, recurrence, stretched=price.time_s / usual.time_s),
            running=price,
            to_probe=[] if self._probing is None else list(begun.to_probe),
            length=length,
        )

    def _end_epoch(self, training: _Training, now_s: float) -> None:
        price = training.running
        problem = self._world.problem.at(training.recurrence)
        training.epoch += 1
        training.time_s += price.time_s
        training.energy_j += price.energy_j
        judged = self._job.report(
            ReportEpoch(
                trial_number=training.begun.trial_number,
                trial_id=training.begun.trial_id,
                epoch=float(training.epoch),
                time_s=training.time_s,
                energy_j=training.energy_j,
                metric=_metric(problem.workload, has_reached=training.needed == training.epoch),
                is_profiling=training.is_profiling,
            ),
            now_s,
        )
        if training.sweep is not None and training.sweep.is_done:
            size, measured = training.begun.batch_size, tuple(training.sweep.measured)
            self._job.record_power_profile(size, problem.hardware, measured, now_s)
            training.price = self._price(size, measured, training.recurrence).scaled(training.length)
            training.sweep = None
        if judged.should_stop:
            self._end_trial(training, judged, now_s)
        else:
            self._run_epoch(training, now_s + self._probe(training, now_s))

    def _probe(self, training: _Training, now_s: float) -> float:
        """Probe as many batch sizes as the budget allows for now, each once; how long that takes [s]."""
        began_s = training.probed_s
        if self._probing is not None:
            for size in tuple(training.to_probe):
                self._probe_one(self._probing, training, size, now_s)
        return training.probed_s - began_s

    def _probe_one(self, probing: Probing, training: _Training, size: int, now_s: float) -> None:
        world, begun, problem = self._world, training.begun, self._world.problem.at(training.recurrence)
        epoch = world.price(size, training.recurrence).scaled(training.length)
        took = probing.took(size, epoch, samples=problem.workload.samples)
        if training.probed_s + took.time_s > begun.spec.probing_budget * training.time_s:
            return
        training.to_probe.remove(size)
        if size in problem.infeasible:
            report = ReportEpochCosts(
                trial_number=begun.trial_number, trial_id=begun.trial_id, out_of_memory=(size,), energy_j=0.0
            )
            self._job.report_epoch_costs(report, now_s)
            return
        training.probed_s += took.time_s
        training.probed_j += took.energy_j
        own = probing.own_probe(begun.batch_size, training.price)
        report = ReportEpochCosts(
            trial_number=begun.trial_number,
            trial_id=begun.trial_id,
            probes=(own, probing.probe(world.seed, begun.trial_number, size, epoch)),
            time_s=took.time_s,
            energy_j=took.energy_j,
        )
        self._job.report_epoch_costs(report, now_s)

    def _end_trial(self, training: _Training, judged: EpochJudged | TrialFinished, now_s: float) -> None:
        assert judged.outcome is not None, "a trial that was stopped has an outcome"
        begun = training.begun
        paid = EpochPrice(time_s=training.time_s + training.probed_s, energy_j=training.energy_j + training.probed_j)
        self._trials.append(
            SimulatedTrial(
                recurrence=training.recurrence,
                recurrence_id=begun.recurrence_id,
                trial_number=begun.trial_number,
                attempt=begun.attempt,
                batch_size=begun.batch_size,
                reason=begun.reason,
                epochs=training.epoch,
                outcome=judged.outcome,
                is_profiling=training.has_profiled,
                cost=self._world.cost(paid, training.recurrence),
                judged_cost=judged.cost,
                time_s=paid.time_s,
                energy_j=paid.energy_j,
                began_s=training.began_s,
                ended_s=now_s,
            )
        )
        if judged.outcome is Outcome.CONVERGED:
            problem = self._world.problem.at(training.recurrence)
            self._best_known.append(self._job.best_known(problem.workload.target_metric, problem.hardware))
            if self._waiting:
                self._schedule(now_s, self._waiting.pop())
            return
        if not judged.should_retry:
            self._openings[training.recurrence] += 1  # a model is due all the same
        self._retry(training.recurrence, now_s)


def _metric(workload: Workload, *, has_reached: bool) -> float:
    """A validation metric at the target, or one that is away from it."""
    away = -1.0 if workload.higher_is_better_metric else 1.0
    return workload.target_metric if has_reached else workload.target_metric + away
