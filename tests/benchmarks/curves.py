"""What validation curves save: a job recurs over recorded trainings, once with their curves and once without.

    python -m tests.benchmarks.curves --seeds 40

Trains the numpy example of examples/digits with each batch size a dozen times, then lets the production rules of the
policy ``curve`` choose and stop among these trainings. Without curves means: each report says only whether the target
is reached. Prints the regret (total cost over the mean cost of the best batch size, less the number of recurrences) of
both, and the difference on the same seeds with its 95 % interval. Either every trial is as lucky as it happens, or all
trials of a recurrence are alike, as where its data make a training hard. Needs numpy and scikit-learn; takes minutes.
"""

import argparse
import importlib.util
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bso.domain.commands import ReportEpoch
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.randomness import uniform
from bso.domain.replies import TrialBegun
from bso.domain.trial import Outcome
from bso.simulator.optimizer import SimulatedJob

SIZES, DEFAULT, TARGET, MAX_EPOCHS, RUNS = (8, 16, 32, 64, 128, 256), 64, 0.95, 60, 12
HORIZONS = (10, 20, 50)
EXAMPLE = Path(__file__).parents[2] / "examples/digits/train_numpy.py"
CPU = HardwareKind(gpu_model="cpu", max_power_w=100.0, energy_method=EnergyMethod.NVML_COUNTER)


def price_s(size: int) -> float:
    """Seconds per epoch, about as measured on a laptop."""
    return 0.004 + 0.064 / size


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The validation accuracy after each epoch of every training, by batch size."""

    curves: dict[int, list[list[float]]]

    def best_cost(self) -> float:
        """The mean cost [J] of a model with the best batch size, failed trainings before it included."""
        return min(self._cost(size) for size in self.curves)

    def _cost(self, size: int) -> float:
        good = [len(curve) for curve in self.curves[size] if curve[-1] >= TARGET]
        if not good:
            return math.inf
        failed = len(self.curves[size]) - len(good)
        return cost_of(size, statistics.mean(good) + failed / len(good) * MAX_EPOCHS)


def cost_of(size: int, epochs: float) -> float:
    """The cost of so many epochs [J]."""
    return CPU.max_power_w * price_s(size) * epochs


def record() -> Recorded:
    """Train every batch size often."""
    from sklearn.datasets import load_digits

    spec = importlib.util.spec_from_file_location("train_numpy", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    digits: Any = load_digits()
    return Recorded(
        curves={
            size: [train(example, digits.data / 16.0, digits.target, size, run) for run in range(RUNS)]
            for size in SIZES
        }
    )


def train(example: Any, images: Any, labels: Any, size: int, run: int) -> list[float]:
    """One training: the accuracy after each epoch, up to the target."""
    import numpy as np

    generator = np.random.default_rng(run)
    order = generator.permutation(len(images))
    training, validation = order[:1400], order[1400:]
    model = example.Perceptron(hidden=128, learning_rate=0.2, generator=generator)
    curve: list[float] = []
    while len(curve) < MAX_EPOCHS and (not curve or curve[-1] < TARGET):
        model.train_epoch(images[training], labels[training], size)
        curve.append(model.accuracy(images[validation], labels[validation]))
    return curve


def recur(recorded: Recorded, seed: int, *, is_blind: bool, is_alike: bool) -> list[float]:
    """The regret after each recurrence."""
    job = SimulatedJob(
        {
            "batch_sizes": SIZES,
            "default_batch_size": DEFAULT,
            "target_metric": TARGET,
            "max_epochs": MAX_EPOCHS,
            "policy": "curve",
        }
    )
    best, paid, regrets, runs = recorded.best_cost(), 0.0, list[float](), dict.fromkeys(SIZES, 0)
    for recurrence in range(1, HORIZONS[-1] + 1):
        attempt, outcome = 0, Outcome.NOT_CONVERGED
        while outcome is not Outcome.CONVERGED:
            attempt += 1
            begun = job.begin(f"{recurrence}.{(attempt - 1) // 3}", CPU, 0.0)
            size = begun.batch_size
            runs[size] += 1
            luck = uniform(seed, recurrence, 0) if is_alike else uniform(seed, runs[size], size)
            curve = recorded.curves[size][int(luck * RUNS)]
            outcome, epochs = _trained(job, begun, curve, is_blind=is_blind)
            paid += cost_of(size, epochs)
        regrets.append(paid / best - recurrence)
    return regrets


def _trained(job: SimulatedJob, begun: TrialBegun, curve: list[float], *, is_blind: bool) -> tuple[Outcome, int]:
    """How a trial ends that follows a curve, and after how many epochs."""
    size = begun.batch_size
    for epoch, accuracy in enumerate(curve, start=1):
        report = ReportEpoch(
            trial_number=begun.trial_number,
            trial_id=begun.trial_id,
            epoch=float(epoch),
            time_s=price_s(size) * epoch,
            energy_j=cost_of(size, epoch),
            metric=0.0 if is_blind and accuracy < TARGET else accuracy,
        )
        judged = job.report(report, 0.0)
        if judged.outcome is not None:
            return judged.outcome, epoch
    raise AssertionError("a curve ends at the target or at max_epochs, and so does a trial")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.curves", description="What validation curves save."
    )
    parser.add_argument("--seeds", type=int, default=40, help="of so many jobs (40)")
    seeds = range(parser.parse_args(arguments).seeds)
    recorded = record()
    for is_alike, words in (
        (False, "each trial is as lucky as it happens"),
        (True, "trials of a recurrence are alike"),
    ):
        blind, seeing = (
            [recur(recorded, seed, is_blind=is_blind, is_alike=is_alike) for seed in seeds]
            for is_blind in (True, False)
        )
        sys.stdout.write(f"{words}\n")
        for horizon in HORIZONS:
            saved = [one[horizon - 1] - other[horizon - 1] for one, other in zip(blind, seeing, strict=True)]
            margin = 1.96 * statistics.stdev(saved) / math.sqrt(len(saved))
            without, with_curves = (statistics.mean(run[horizon - 1] for run in runs) for runs in (blind, seeing))
            sys.stdout.write(
                f"  regret after {horizon} recurrences: {without:.2f} without curves, {with_curves:.2f} with them; "
                f"saved {statistics.mean(saved):.2f} +- {margin:.2f}\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
