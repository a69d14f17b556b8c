"""A family of made problems whose cost is a smooth curve of the batch size with one optimum, all from a seed.

Epochs to the target are a (1 + (b / b0)^p) times a lognormal factor, an epoch costs c (1 + b1 / b): small batches take
long epochs, large ones many. The default is one to four octaves away from the best batch size.
"""

import math
from dataclasses import dataclass

from bso.domain.policies import own_policies
from bso.domain.randomness import seed_from, standard_normal, uniform
from bso.simulator import BatchSizeProblem, Workload
from bso.simulator.traces import MeasuredEpoch
from bso.simulator.world import World
from tests.benchmarks.hill_climber import HillClimber
from tests.benchmarks.judging import Judging, regrets_of
from tests.benchmarks.resampling import Resampled, Values, table_over

SIZES = tuple(1 << octave for octave in range(3, 15))
RUNS = 40
"""Runs of each batch size, of which the simulator draws."""
HORIZONS = (20, 100)
CURVES_PER_SEED = 3
CLIMBER = "hill climber"
_POWER_W = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothCurve:
    """The curve of one problem, and the standard deviation ``noise`` of the logarithm of its epochs."""

    least_epochs: float
    epochs_double_at: float
    exponent: float
    least_epoch_s: float
    epoch_doubles_at: float
    noise: float

    def epochs(self, size: int) -> float:
        """Epochs to the target, in the middle."""
        return self.least_epochs * (1.0 + math.pow(size / self.epochs_double_at, self.exponent))

    def epoch_s(self, size: int) -> float:
        """What an epoch takes [s]."""
        return self.least_epoch_s * (1.0 + self.epoch_doubles_at / size)

    def best(self) -> int:
        """The batch size that costs least."""
        return min(SIZES, key=lambda size: self.epochs(size) * self.epoch_s(size))


def compare(judging: Judging) -> None:
    """Regrets of the hill climber and of the policies; each problem has runs of its own, so one seed does."""
    first, count = CURVES_PER_SEED * judging.seeds[0], CURVES_PER_SEED * len(judging.seeds)
    problems = [smooth_problem(number) for number in range(first, first + count)]
    seeds = judging.seeds[:1]
    judging.say(f"policies: {len(problems)} smooth curves")
    resampled = Resampled([problem.name for problem in problems], len(seeds))
    climbed = [_climbed(problem, seeds[0]) for problem in problems]
    found: dict[str, dict[int, Values]] = {
        CLIMBER: {horizon: table_over([[regrets[horizon - 1]] for regrets in climbed]) for horizon in HORIZONS}
    }
    for policy in own_policies():
        results = judging.simulate(problems, policy, seeds=seeds, recurrences=HORIZONS[-1])
        found[policy] = {horizon: regrets_of(results, horizon) for horizon in HORIZONS}
    for name, by_horizon in found.items():
        for horizon, regrets in by_horizon.items():
            ratio = resampled.ratio(regrets, found[CLIMBER][horizon]) if name != CLIMBER else None
            mean = resampled.mean(regrets)
            judging.add(
                f"{len(problems)} smooth curves; {name}", f"regret@{horizon}", "runs", mean, ratio=ratio, to=CLIMBER
            )


def _climbed(problem: BatchSizeProblem, seed: int) -> list[float]:
    return HillClimber(World(problem=problem, seed=seed, eta_knob=0.5)).regrets(HORIZONS[-1])


def smooth_problem(number: int, *, noise: float | None = None) -> BatchSizeProblem:
    """The problem of that number: always the same one; ``noise`` None: .1 to .3."""
    seed = seed_from(f"smooth curve {number}")
    curve = SmoothCurve(
        least_epochs=_between(5.0, 12.0, seed, 1),
        epochs_double_at=_between(64.0, 2048.0, seed, 2),
        exponent=_between(0.5, 1.0, seed, 3),
        least_epoch_s=_between(10.0, 100.0, seed, 4),
        epoch_doubles_at=_between(32.0, 1024.0, seed, 5),
        noise=_between(0.1, 0.3, seed, 6) if noise is None else noise,
    )
    default = _default(curve.best(), seed)
    max_epochs = math.ceil(4.0 * max(curve.epochs(default), curve.epochs(curve.best())))
    workload = Workload(
        dataset=f"smooth-{number}",
        network="none",
        optimizer="none",
        target_metric=0.9,
        max_epochs=max_epochs,
        default_batch_size=default,
    )
    return BatchSizeProblem(
        workload=workload,
        gpu="none",
        max_power_w=_POWER_W,
        runs={size: _runs(curve, size, seed) for size in SIZES},
        epochs={
            size: (MeasuredEpoch(power_limit_w=_POWER_W, time_s=curve.epoch_s(size), average_power_w=_POWER_W),)
            for size in SIZES
        },
    )


def _runs(curve: SmoothCurve, size: int, seed: int) -> tuple[int, ...]:
    """The simulator leaves out what takes more than max_epochs."""
    factors = (math.exp(curve.noise * standard_normal(seed, run, size)) for run in range(1, RUNS + 1))
    return tuple(max(1, round(curve.epochs(size) * factor)) for factor in factors)


def _default(best: int, seed: int) -> int:
    """One to four octaves to either side, the other one where the batch sizes end."""
    octaves = 1 + int(4 * uniform(seed, 0, 7))
    sides = (octaves, -octaves) if uniform(seed, 0, 8) < 0.5 else (-octaves, octaves)
    position = SIZES.index(best)
    return next(SIZES[position + side] for side in sides if 0 <= position + side < len(SIZES))


def _between(low: float, high: float, seed: int, draw: int) -> float:
    """Uniform on the logarithmic scale."""
    return low * math.pow(high / low, uniform(seed, 0, draw))
