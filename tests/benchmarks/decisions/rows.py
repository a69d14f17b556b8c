"""What many jobs say together: means with 95 % intervals from a bootstrap over seeds.

Jobs with the same seed share their luck, whatever their world is, so they are drawn together.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.decisions.jobs import AT, JobFigures

CHECKED = (20, 30, 60)
"""Recurrences after which the batch size that is believed best is looked at."""
_RESAMPLES = 2000
_SEED = 20230417
_LEVEL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """The mean of the worst part of what a cell is about, and its name."""

    mean: float
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A mean, the ends of its 95 % interval, and the worst parts: of the families of truths, of the worlds."""

    mean: float
    low: float
    high: float
    worst: tuple[Worst, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """A world in which one policy's last trials cost more than another's with the same luck, beyond chance."""

    noise: str
    world: str
    difference: float
    p: float


Quantity = Callable[[JobFigures], float]

RECENT: Quantity = lambda job: 100 * job.recent  # noqa: E731
WASTED: Quantity = lambda job: job.wasted  # noqa: E731
WASTED_AS_PAID: Quantity = lambda job: job.wasted_as_paid  # noqa: E731
HARMED: Quantity = lambda job: 100 * job.is_harmed  # noqa: E731
OVER_DEFAULT: Quantity = lambda job: 100 * job.over_default  # noqa: E731


def believed_at(recurrence: int) -> Quantity:
    """The excess [%] of what is believed best after a recurrence."""
    return lambda job: 100 * job.believed[recurrence - 1]


def cell(jobs: Sequence[JobFigures], quantity: Quantity) -> Cell:
    """A quantity over jobs of several worlds."""
    values = np.array([quantity(job) for job in jobs])
    low, high = _ends(_by_seed(jobs, values))
    worst = _worst_parts(jobs, lambda chosen: float(values[chosen].mean()))
    return Cell(mean=float(values.mean()), low=low, high=high, worst=worst)


def ratio(noisy: Sequence[JobFigures], quiet: Sequence[JobFigures], quantity: Quantity) -> Cell:
    """The mean of a quantity over that of the same jobs without noise."""
    pairs = np.array([[quantity(mine), quantity(other)] for mine, other in zip(noisy, quiet, strict=True)])
    of_seed = np.stack([_by_seed(noisy, column) for column in pairs.T], axis=-1)
    drawn = of_seed[_draws(len(of_seed))].mean(axis=1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], (0.025, 0.975))

    def of(chosen: NDArray[np.bool_]) -> float:
        mine, other = pairs[chosen].mean(axis=0)
        return float(mine / other) if other > 0 else math.inf

    mean = of(np.full(len(pairs), fill_value=True))
    return Cell(mean=mean, low=float(low), high=float(high), worst=_worst_parts(noisy, of))


def costlier_worlds(compared: Mapping[str, tuple[Sequence[JobFigures], Sequence[JobFigures]]]) -> tuple[Paired, ...]:
    """Worlds of all noises in which the last trials of the first are costlier with the same luck than the second's.

    After Holm's correction over all worlds of all noises. The probabilities are those of a paired z test, one-sided.
    Holm, A simple sequentially rejective multiple test procedure (1979).
    """
    found = []
    for noise, (jobs, others) in compared.items():
        pairs = [(mine.world, 100 * (mine.recent - other.recent)) for mine, other in zip(jobs, others, strict=True)]
        for name in _names(jobs):
            differences = np.array([difference for world, difference in pairs if world == name])
            found.append(Paired(noise=noise, world=name, difference=float(differences.mean()), p=_p(differences)))
    found.sort(key=lambda one: one.p)
    rejected = []
    for number, one in enumerate(found):
        if one.p > _LEVEL / (len(found) - number):
            break
        rejected.append(one)
    return tuple(rejected)


def followed_within(jobs: Sequence[JobFigures], *, step: float, since: int) -> int | None:
    """Recurrences after a step until the median job expects more than half of it (on the logarithmic scale).

    None: not until the end.
    """
    for recurrence in range(since, len(jobs[0].expected) + 1):
        ratios = sorted(job.expected[recurrence - 1] for job in jobs if not math.isnan(job.expected[recurrence - 1]))
        if ratios and ratios[len(ratios) // 2] > 1.0 / math.sqrt(step):
            return recurrence - since + 1
    return None


def change_point_share(jobs: Sequence[JobFigures]) -> float:
    """Of all trials, the share [%] that were taken for a change."""
    return 100 * sum(job.change_points for job in jobs) / max(1, sum(job.trials for job in jobs))


def believed_curve(jobs: Sequence[JobFigures]) -> NDArray[np.float64]:
    """The mean excess [%] of what is believed best after each recurrence."""
    found: NDArray[np.float64] = 100 * np.array([job.believed for job in jobs]).mean(axis=0)
    return found


def expected_sanity(jobs: Sequence[JobFigures]) -> float:
    """Of all jobs, the share [%] that at recurrence 30 expect less than half or more than twice the true cost."""
    ratios = [job.expected[AT - 1] for job in jobs if not math.isnan(job.expected[AT - 1])]
    return 100 * sum(not 0.5 <= ratio <= 2.0 for ratio in ratios) / max(1, len(ratios))


def _p(differences: NDArray[np.float64]) -> float:
    """How likely so large a mean is by chance; nothing is said of fewer than two, or where there is no difference."""
    if len(differences) < 2 or not differences.any():
        return 1.0
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return 1.0 - NormalDist().cdf(float(differences.mean()) / error) if error > 0 else float(differences[0] < 0)


def _names(jobs: Sequence[JobFigures]) -> list[str]:
    return list(dict.fromkeys(job.world for job in jobs))


def _worst_parts(jobs: Sequence[JobFigures], figure: Callable[[NDArray[np.bool_]], float]) -> tuple[Worst, ...]:
    """The worst family of truths (all its defaults), and the worst world; ``figure`` is of the jobs that are marked."""
    found = []
    for names in ([job.family for job in jobs], [job.world for job in jobs]):
        figures = {name: figure(np.array([each == name for each in names])) for name in dict.fromkeys(names)}
        worst = max(figures, key=lambda name: figures[name])
        found.append(Worst(mean=figures[worst], name=worst))
    return tuple(found)


def _by_seed(jobs: Sequence[JobFigures], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over the worlds of each seed."""
    found: dict[int, list[float]] = {}
    for job, value in zip(jobs, values, strict=True):
        found.setdefault(job.seed, []).append(float(value))
    return np.array([sum(each) / len(each) for each in found.values()])


def _draws(count: int) -> NDArray[np.int64]:
    return np.random.default_rng(_SEED).integers(count, size=(_RESAMPLES, count))


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    means = values[_draws(len(values))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)
