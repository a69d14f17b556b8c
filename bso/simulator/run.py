"""What a simulation gives: every trial, and what each recurrence cost against the oracle and the default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from bso.domain.policy import Expectation
from bso.domain.trial import Outcome
from bso.simulator.problem import BatchSizeProblem

RECENT = 10
"""Recurrences over which the share of wrong batch sizes is counted."""
LAST = 5
"""Recurrences at the end over which time and energy are compared with the default's, as in the paper's figure 6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTrial:
    """One training. ``cost`` [J] is what was paid; ``judged_cost`` [J] leaves out what profiling power limits added.

    ``recurrence`` counts from 1; ``began_s`` and ``ended_s`` are virtual times [s].
    """

    recurrence: int
    recurrence_id: str
    trial_number: int
    attempt: int
    batch_size: int
    epochs: int
    outcome: Outcome
    is_profiling: bool
    cost: float
    judged_cost: float
    time_s: float
    energy_j: float
    began_s: float
    ended_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What recurrences cost that always run one batch size: [J], seconds and joules, with the same luck.

    ``mean_costs`` [J] are those of the average run.
    """

    batch_sizes: tuple[int, ...]
    costs: tuple[float, ...]
    mean_costs: tuple[float, ...]
    mean_times_s: tuple[float, ...]
    mean_energies_j: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestKnown:
    """The batch size that a policy takes for the best one, and what it expects a run of it to cost [J].

    ``batch_size`` is the default before anything is known; ``expected_cost`` is None where nothing is expected.
    """

    batch_size: int
    expected_cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One simulated job. Sequences have one entry per recurrence; trials come in the order in which they ended.

    ``default`` is the default batch size at the largest power limit; None where it never converges. ``mean_costs`` [J]
    are what a model of each batch size costs on the average in the last recurrence, infinite where none converges;
    ``expected`` is what the policy then expects of each that it knows something about. ``best_known`` is the best one
    in its opinion each time a recurrence has its model, in that order.
    ``change_points`` counts the changes that it has reported.
    """

    problem: BatchSizeProblem
    policy: str
    eta_knob: float
    seed: int
    trials: tuple[SimulatedTrial, ...]
    oracle: Baseline
    default: Baseline | None
    mean_costs: Mapping[int, float]
    expected: Mapping[int, Expectation]
    best_known: tuple[BestKnown, ...]
    change_points: int

    @property
    def recurrences(self) -> int:
        """How often the job recurred."""
        return len(self.oracle.costs)

    @property
    def costs(self) -> tuple[float, ...]:
        """What each recurrence cost [J], its failed trials included."""
        costs = [0.0] * self.recurrences
        for trial in self.trials:
            costs[trial.recurrence - 1] += trial.cost
        return tuple(costs)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch size that gave each recurrence its model."""
        chosen = {trial.recurrence: trial.batch_size for trial in self.trials if trial.outcome is Outcome.CONVERGED}
        return tuple(chosen[number] for number in range(1, self.recurrences + 1))

    @property
    def regrets(self) -> tuple[float, ...]:
        """Whole trainings wasted up to each recurrence: the sum of (cost - oracle's cost) / oracle's mean cost."""
        costs = zip(self.costs, self.oracle.costs, self.oracle.mean_costs, strict=True)
        return tuple(accumulate((cost - best) / mean for cost, best, mean in costs))

    def regret(self, horizon: int) -> float:
        """Whole trainings wasted in the first recurrences."""
        return self.regrets[horizon - 1]

    def cost_over_oracle(self, horizon: int) -> float:
        """The cost of the first recurrences over that of the oracle, less 1."""
        return sum(self.costs[:horizon]) / sum(self.oracle.costs[:horizon]) - 1.0

    def cost_over_default(self, horizon: int) -> float:
        """The cost of the first recurrences over that of the default, less 1; NaN where that never converges."""
        if self.default is None:
            return math.nan
        return sum(self.costs[:horizon]) / sum(self.default.costs[:horizon]) - 1.0

    def wrong_share(self, horizon: int) -> float:
        """The share of the last ten recurrences up to this one that got their model from another size than the best."""
        first = max(0, horizon - RECENT)
        pairs = zip(self.batch_sizes[first:horizon], self.oracle.batch_sizes[first:horizon], strict=True)
        wrong = [chosen != best for chosen, best in pairs]
        return sum(wrong) / len(wrong)

    @property
    def last_energy_over_default(self) -> float:
        """Energy of the last five recurrences over the default's mean; NaN where the default never converges."""
        if self.default is None:
            return math.nan
        return sum(trial.energy_j for trial in self._last_trials()) / sum(self.default.mean_energies_j[-LAST:])

    @property
    def last_time_over_default(self) -> float:
        """Time of the last five recurrences over the default's mean; NaN where the default never converges."""
        if self.default is None:
            return math.nan
        return sum(trial.time_s for trial in self._last_trials()) / sum(self.default.mean_times_s[-LAST:])

    @property
    def tries_per_recurrence(self) -> float:
        """Trials per recurrence."""
        return len(self.trials) / self.recurrences

    def _last_trials(self) -> list[SimulatedTrial]:
        return [trial for trial in self.trials if trial.recurrence > self.recurrences - LAST]
