"""Invented trainings: what a batch size costs at a time, and recurrences that are run to their end in such a world."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bso.domain.replies import TrialBegun
from bso.domain.trial import Outcome
from tests.unit.domain.builders import JobLife

EPOCHS = 3


@dataclass(kw_only=True)
class World:
    """Costs by batch size; ``noise`` is the standard deviation of their logarithm.

    From recurrence ``changes_at`` on everything costs ``factor`` times as much. ``fails`` says for a batch size and a
    recurrence whether it cannot converge, ``out_of_memory_from`` is the smallest batch size that does not fit.
    """

    costs: Mapping[int, float]
    noise: float = 0.0
    changes_at: int = 10**9
    factor: float = 1.0
    fails: Callable[[int, int], bool] = lambda size, recurrence: False
    out_of_memory_from: int = 10**9
    seed: int = 0
    paths: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.paths = random.Random(self.seed)

    def cost(self, size: int, recurrence: int) -> float | None:
        """What it costs to converge now; None: it does not."""
        if self.fails(size, recurrence):
            return None
        risen = self.factor if recurrence >= self.changes_at else 1.0
        return self.costs[size] * risen * self.paths.lognormvariate(0.0, self.noise)


def run_recurrence(life: JobLife, world: World, number: int) -> list[TrialBegun]:
    """Run trials until the recurrence is over; the last one begun is the one that converged, if any did."""
    trials = []
    while True:
        trials.append(life.begin(f"r{number}"))
        if not run_trial(life, world, trials[-1], number):
            return trials
        assert len(trials) <= life.spec.max_attempts, "a recurrence goes on after its last attempt"


def run_trial(life: JobLife, world: World, trial: TrialBegun, number: int) -> bool:
    """Train until stopped; whether the recurrence wants another trial."""
    if trial.batch_size >= world.out_of_memory_from:
        return life.run_out_of_memory(trial).should_retry
    cost = world.cost(trial.batch_size, number)
    spent = world.costs[trial.batch_size] * 20 if cost is None else cost
    for epoch in range(1, EPOCHS + 1):
        is_last = cost is not None and epoch == EPOCHS
        reply = life.report(trial, cost=spent * epoch / EPOCHS, metric=trial.spec.target_metric if is_last else 0.0)
        if reply.should_stop:
            return reply.should_retry
    return life.finish(trial, Outcome.NOT_CONVERGED, "max_epochs passed").should_retry


def has_model(life: JobLife, trials: list[TrialBegun]) -> bool:
    """Whether a recurrence ended with a model."""
    return life.row(trials[-1]).outcome is Outcome.CONVERGED
