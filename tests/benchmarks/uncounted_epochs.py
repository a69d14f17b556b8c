"""What curve makes of runs whose epochs nobody counted: how many runs it wastes after a history that has no epochs.

    python -m tests.benchmarks.uncounted_epochs --jobs 60 --first-seed 1000

Each job is invented: epochs rise beyond a batch size of its own, the cost of an epoch falls up to another. Its history
is what Zeus' rules leave: two rounds of pruning and three more runs of the best. Then the policy decides alone.
"""

import argparse
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from bso.domain.trial import Outcome
from tests.unit.domain.builders import A100, JobLife

SIZES = (8, 16, 32, 64, 128, 256, 512)
DEFAULT = 64
RECURRENCES = 25
BETA = 2.0
MODES = ("uncounted", "one epoch each", "true epochs", "no history")


@dataclass(frozen=True, kw_only=True)
class Invented:
    """Epochs to the target and the cost of an epoch [J] by batch size, and by how much both vary."""

    epochs: dict[int, float]
    epoch_costs: dict[int, float]
    epochs_noise: float
    cost_noise: float

    @classmethod
    def of(cls, paths: random.Random) -> "Invented":
        """A job at random."""
        octaves = {size: math.log2(size / DEFAULT) for size in SIZES}
        least, critical = math.exp(paths.uniform(math.log(6), math.log(60))), paths.uniform(-2, 3)
        slope, down = paths.uniform(0.6, 1.1), paths.uniform(-0.1, 0.25)
        saturated, cost = paths.uniform(-1, 3), math.exp(paths.uniform(5, 12))
        return cls(
            epochs={size: least * (1 + 2 ** (slope * (x - critical))) * 2 ** (down * x) for size, x in octaves.items()},
            epoch_costs={
                size: cost * (1 + 2 ** (-(x - saturated) * paths.uniform(0.6, 1))) for size, x in octaves.items()
            },
            epochs_noise=paths.uniform(0.03, 0.15),
            cost_noise=paths.uniform(0.02, 0.08),
        )

    def run(self, size: int, paths: random.Random) -> tuple[int, float]:
        """A run: its epochs, and what each costs."""
        count = self.epochs[size] * math.exp(paths.gauss(0, self.epochs_noise))
        return max(1, round(count)), self.epoch_costs[size] * math.exp(paths.gauss(0, self.cost_noise))

    @property
    def least_cost(self) -> float:
        """What a run of the best batch size costs in the mean."""
        return min(self.epochs[size] * self.epoch_costs[size] for size in SIZES)


@dataclass(frozen=True, kw_only=True)
class Past:
    """A run of the history."""

    size: int
    epochs: int
    cost: float
    has_converged: bool


def history_of(job: Invented, paths: random.Random) -> Iterator[Past]:
    """What Zeus' rules leave of a job."""
    least, alive, costs = math.inf, list(SIZES), dict[int, float]()
    for _ in range(2):
        start, converged = min(alive, key=lambda size: costs[size]) if costs else DEFAULT, list[int]()
        for way in ([size for size in reversed(alive) if size <= start], [size for size in alive if size > start]):
            for size in way:
                count, price = job.run(size, paths)
                has_converged = count * price <= BETA * least
                count = count if has_converged else math.ceil(BETA * least / price)
                yield Past(size=size, epochs=count, cost=count * price, has_converged=has_converged)
                if not has_converged:
                    break
                least, costs[size] = min(least, count * price), count * price
                converged.append(size)
        alive = sorted(converged)
    best = min(alive, key=lambda size: costs[size])
    for _ in range(3):
        count, price = job.run(best, paths)
        yield Past(size=best, epochs=count, cost=count * price, has_converged=True)


def record(life: JobLife, past: Past, mode: str) -> None:
    """Record a run of the history."""
    begun = life.begin(batch_size=past.size)
    if mode != "uncounted":
        epoch = 1.0 if mode == "one epoch each" else float(past.epochs)
        life.report(begun, epoch=epoch, cost=past.cost, metric=0.95 if past.has_converged else 0.1, is_journalled=True)
    outcome = Outcome.CONVERGED if past.has_converged else Outcome.COST_EXCEEDED
    time_s = past.cost / A100.max_power_w
    life.finish(begun, outcome, "recorded elsewhere", time_s=time_s, energy_j=past.cost, is_journalled=True)


def recur(life: JobLife, job: Invented, number: int, paths: random.Random) -> float:
    """A recurrence until it has a model; its cost."""
    spent = 0.0
    while True:
        begun = life.begin(f"recurrence-{number}")
        count, price = job.run(begun.batch_size, paths)
        for epoch in range(1, count + 1):
            judged = life.report(begun, epoch=epoch, cost=price * epoch, metric=0.95 if epoch == count else 0.1)
            if judged.should_stop:
                spent += price * epoch
                if judged.outcome is Outcome.CONVERGED:
                    return spent
                break


def wasted(seed: int, mode: str) -> float:
    """The runs of the best batch size that a job wastes."""
    job, paths = Invented.of(random.Random(seed)), random.Random(seed + 10**6)
    life = JobLife()
    life.register(
        batch_sizes=list(SIZES),
        default_batch_size=DEFAULT,
        target_metric=0.9,
        max_epochs=2000,
        eta_knob=1.0,
        beta_knob=BETA,
        policy="curve",
    )
    for past in history_of(job, paths):
        if mode != "no history":
            record(life, past, mode)
    return sum(recur(life, job, number, paths) / job.least_cost - 1.0 for number in range(RECURRENCES))


def main() -> None:
    """Measure all modes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--first-seed", type=int, default=1000)
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.jobs)
    for mode in MODES:
        runs = fmean(wasted(seed, mode) for seed in seeds)
        sys.stdout.write(f"{mode}: {runs:.2f} runs wasted in {RECURRENCES} recurrences\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
