"""Invented trainings whose epochs to the target and whose price of an epoch are known."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bso.domain.hardware import HardwareKind
from bso.domain.replies import EpochJudged, TrialBegun, TrialFinished
from bso.domain.trial import Outcome
from tests.unit.domain.builders import A100, JobLife

EPOCHS = {16: 12, 32: 12, 64: 14, 128: 20, 256: 36, 512: 80}
PRICES = {16: 40.0, 32: 22.0, 64: 13.0, 128: 8.5, 256: 6.5, 512: 6.0}
"""J per epoch: 128 costs least, 170 J; 64 comes next, 182."""


@dataclass(kw_only=True)
class Trainings:
    """A job under the policy curve, and what trainings of it do.

    ``noise``: standard deviation of ln epochs. ``diverging`` batch sizes evaluate to NaN, ``infeasible`` ones cannot
    run.
    """

    epochs: Mapping[int, int | None] = field(default_factory=lambda: dict(EPOCHS))
    prices: Mapping[int, float] = field(default_factory=lambda: dict(PRICES))
    diverging: frozenset[int] = frozenset()
    infeasible: frozenset[int] = frozenset()
    noise: float = 0.0
    hardware: HardwareKind = A100
    life: JobLife = field(default_factory=JobLife)
    paths: random.Random = field(default_factory=lambda: random.Random(1))

    def register(self, **spec: Any) -> "Trainings":
        """Register the job; it starts at 256."""
        sizes = sorted(self.epochs)
        usual: dict[str, Any] = {"batch_sizes": sizes, "default_batch_size": 256, "max_epochs": 100, "policy": "curve"}
        self.life.register(**usual | spec)
        return self

    def best(self) -> int:
        """The cheapest batch size."""
        costs = {size: epochs * self.prices[size] for size, epochs in self.epochs.items() if epochs is not None}
        return min(costs, key=lambda size: costs[size])

    def recur(self, number: int) -> list[TrialBegun]:
        """Train until there is a model, or no attempt is left."""
        trials = []
        while True:
            trials.append(self.life.begin(f"r{number}", hardware=self.hardware))
            if not self.end(trials[-1]).should_retry:
                return trials

    def end(self, trial: TrialBegun) -> EpochJudged | TrialFinished:
        """Train a trial to its end, if it can begin."""
        if trial.batch_size in self.infeasible:
            return self.life.finish(trial, Outcome.INFEASIBLE, "cudnn: CUDNN_STATUS_NOT_SUPPORTED")
        return self.train(trial)

    def train(self, trial: TrialBegun, *, up_to: float = math.inf) -> EpochJudged:
        """Train a trial until it is stopped, or has come so far."""
        needed = self.epochs[trial.batch_size]
        if needed is not None:
            needed = max(1, round(needed * self.paths.lognormvariate(0.0, self.noise)))
        while True:
            row = self.life.row(trial)
            epoch = row.epoch + 1.0
            metric = trial.spec.target_metric if needed is not None and epoch >= needed else 0.0
            if trial.batch_size in self.diverging:
                metric = math.nan
            noted = self.life.report(trial, cost=row.cost + self.prices[trial.batch_size], metric=metric)
            if noted.should_stop or epoch >= up_to:
                return noted

    def chosen(self, recurrences: range) -> list[int]:
        """The batch size that gave each recurrence its model."""
        return [self.recur(number)[-1].batch_size for number in recurrences]

    def outcomes(self) -> list[Outcome | None]:
        """How the trials ended."""
        return [row.outcome for row in self.life.rows.values()]
