"""The world that trainings run in: what a run of a batch size would take, and what is best on the average.

The epochs of the k-th run of a batch size are a pure function of the seed, so every policy, and the oracle, meets
the same runs (common random numbers).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from bso.domain.randomness import seed_from, uniform
from bso.simulator.drift import NO_DRIFT, Drift
from bso.simulator.errors import InvalidSimulation
from bso.simulator.noise import NO_NOISE, Noise
from bso.simulator.problem import BatchSizeProblem, EpochPrice


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCost:
    """What a converged model costs on the average: ``cost`` [J], failed runs, paid to max_epochs, included.

    ``time_s`` and ``energy_j`` likewise; all infinite where no run converges.
    """

    cost: float
    time_s: float
    energy_j: float


_State = tuple[int, float, float, bool, int]
"""What a recurrence is like: its phase, and what has drifted: epochs, epoch cost, and where the optimum has moved."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A problem, its drift and its noise, and the luck of one seed. ``failure_rate`` is the chance that any run fails.

    Prices and expectations are without the noise; its factors are asked for separately.
    """

    problem: BatchSizeProblem
    seed: int
    eta_knob: float
    drift: Drift = NO_DRIFT
    failure_rate: float = 0.0
    noise: Noise = NO_NOISE
    _best: dict[_State, int] = field(default_factory=dict, repr=False)
    _usual_epochs: dict[tuple[int, _State], float] = field(default_factory=dict, repr=False)
    _prices: dict[tuple[int, int], EpochPrice] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Raises InvalidSimulation for a failure rate that is none."""
        if not 0.0 <= self.failure_rate < 1.0:
            raise InvalidSimulation(f"the failure rate must be from 0 to below 1, got {self.failure_rate:g}")

    def max_epochs(self, recurrence: int) -> int:
        """The job's limit. It grows with the epochs that a training takes, as its user would let it."""
        limit = self.problem.at(recurrence).workload.max_epochs
        return max(limit, math.ceil(limit * self.drift.epochs_factor(recurrence) - 1e-9))

    def epochs_to_target(self, batch_size: int, run: int, recurrence: int) -> int | None:
        """The epochs of the run-th run (1, 2, ...) of a batch size; None: it fails, or would take too many."""
        runs = self._runs(batch_size, recurrence)
        needed = runs[int(uniform(self._epochs_seed, run, batch_size) * len(runs))]
        if needed is None or (self.failure_rate and self._fails(batch_size, run)):
            return None
        return self._within_limit(needed, recurrence)

    def price(self, batch_size: int, recurrence: int) -> EpochPrice:
        """An ordinary epoch, at the best power limit."""
        key = batch_size, self.problem.phase(recurrence)
        if key not in self._prices:
            self._prices[key] = self.problem.at(recurrence).best_price(batch_size, self.eta_knob)
        return self._prices[key].scaled(self.drift.epoch_cost_factor(recurrence))

    def price_under(self, shares: Mapping[float, float], batch_size: int, recurrence: int) -> EpochPrice:
        """An epoch that has these shares of its steps under each power limit [W]."""
        price = self.problem.at(recurrence).price_under(shares, batch_size)
        return price.scaled(self.drift.epoch_cost_factor(recurrence))

    def unlimited_price(self, batch_size: int, recurrence: int) -> EpochPrice:
        """An epoch at the largest power limit."""
        price = self.problem.at(recurrence).unlimited_price(batch_size)
        return price.scaled(self.drift.epoch_cost_factor(recurrence))

    def run_factor(self, batch_size: int, run: int, recurrence: int) -> float:
        """By how much the run-th run (1, 2, ...) of a batch size costs more per epoch than it should."""
        return self.noise.run_factor(self.seed, batch_size, run, recurrence)

    def epoch_factor(self, batch_size: int, run: int, epoch: int) -> float:
        """By how much one epoch (1, 2, ...) of it costs more than its others."""
        return self.noise.epoch_factor(self.seed, batch_size, run, epoch)

    def noisy_epochs(self, batch_size: int, run: int, recurrence: int, epochs: int) -> float:
        """What so many epochs of a run cost, in ordinary ones."""
        if self.noise == NO_NOISE:
            return epochs
        each = sum(self.epoch_factor(batch_size, run, epoch) for epoch in range(1, epochs + 1))
        return each * self.run_factor(batch_size, run, recurrence)

    def cost(self, price: EpochPrice, recurrence: int) -> float:
        """What a price costs [J] on the GPU of a recurrence."""
        return price.cost(eta_knob=self.eta_knob, max_power_w=self.problem.at(recurrence).max_power_w)

    def best_batch_size(self, recurrence: int) -> int:
        """The batch size whose converged model costs least on the average."""
        state = self._state(recurrence)
        if state not in self._best:
            self._best[state] = min(self.problem.batch_sizes, key=lambda size: self.expected(size, recurrence).cost)
        return self._best[state]

    def expected(self, batch_size: int, recurrence: int) -> ExpectedCost:
        """What a converged model costs on the average at a batch size's best power limit."""
        return self._expectation(batch_size, recurrence, self.price(batch_size, recurrence))

    def expected_unlimited(self, batch_size: int, recurrence: int) -> ExpectedCost:
        """The same at the largest power limit."""
        return self._expectation(batch_size, recurrence, self.unlimited_price(batch_size, recurrence))

    def _state(self, recurrence: int) -> _State:
        drift = self.drift
        factors = drift.epochs_factor(recurrence), drift.epoch_cost_factor(recurrence)
        return self.problem.phase(recurrence), *factors, drift.is_mirrored(recurrence), drift.places(recurrence)

    def _expectation(self, batch_size: int, recurrence: int, price: EpochPrice) -> ExpectedCost:
        key = batch_size, self._state(recurrence)
        if key not in self._usual_epochs:
            self._usual_epochs[key] = self._expected_epochs(batch_size, recurrence)
        epochs = self._usual_epochs[key]
        if math.isinf(epochs):
            return ExpectedCost(cost=math.inf, time_s=math.inf, energy_j=math.inf)
        whole = price.scaled(epochs)
        return ExpectedCost(cost=self.cost(whole, recurrence), time_s=whole.time_s, energy_j=whole.energy_j)

    def _expected_epochs(self, batch_size: int, recurrence: int) -> float:
        """Of the run that converges and of those that failed before it; infinite for what does not fit in memory."""
        if batch_size in self.problem.at(recurrence).infeasible:
            return math.inf
        runs = self._runs(batch_size, recurrence)
        good = [epochs for one in runs if one is not None and (epochs := self._within_limit(one, recurrence))]
        if not good:
            return math.inf
        success = len(good) / len(runs) * (1.0 - self.failure_rate)
        return sum(good) / len(good) + (1.0 - success) / success * self.max_epochs(recurrence)

    def _runs(self, batch_size: int, recurrence: int) -> tuple[int | None, ...]:
        sizes = self.problem.batch_sizes
        source = min(max(self._places[batch_size] - self.drift.places(recurrence), 0), len(sizes) - 1)
        runs = self.problem.at(recurrence).runs
        return runs[sizes[-1 - source] if self.drift.is_mirrored(recurrence) else sizes[source]]

    def _within_limit(self, epochs: int, recurrence: int) -> int | None:
        drifted = max(1, round(epochs * self.drift.epochs_factor(recurrence)))
        return drifted if drifted <= self.max_epochs(recurrence) else None

    def _fails(self, batch_size: int, run: int) -> bool:
        return uniform(self._failure_seed, run, batch_size) < self.failure_rate

    # Seeds of their own: the policy draws from (seed, trial number, batch size) too, and must not foresee a run.
    @cached_property
    def policy_seed(self) -> int:
        """What the policy draws from."""
        return seed_from(f"{self.seed}/policy")

    @cached_property
    def _epochs_seed(self) -> int:
        return seed_from(f"{self.seed}/epochs")

    @cached_property
    def _failure_seed(self) -> int:
        return seed_from(f"{self.seed}/failure")

    @cached_property
    def _places(self) -> dict[int, int]:
        return {size: place for place, size in enumerate(self.problem.batch_sizes)}


def usual_runtime_s(problem: BatchSizeProblem) -> float:
    """How long a training of the default batch size takes on the average; of the best one if that never converges."""
    world = World(problem=problem, seed=0, eta_knob=0.5)
    size = problem.default_batch_size
    if math.isinf(world.expected_unlimited(size, 1).time_s):
        size = world.best_batch_size(1)
    return world.expected_unlimited(size, 1).time_s
