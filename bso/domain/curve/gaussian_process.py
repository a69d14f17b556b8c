"""A Gaussian process over log2 of the batch size: a line of uncertain slope, and deviations from it.

Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), algorithm 2.1. In plain Python: the matrices
have as many rows as batch sizes were tried, and a decision must not depend on a numerical library.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import add, mul

from bso.domain.replacing import replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is expected before any observation, x being octaves from the default batch size.

    Mean ``level + slope * x``; the level, the slope and the smooth deviation have these variances, and the deviation
    this length scale in octaves. ``own_variance`` is that of what each place has for itself: no curve is quite smooth.
    """

    level: float
    slope: float
    level_variance: float
    slope_variance: float
    curve_variance: float
    length_scale: float = 2.0
    own_variance: float = 0.0

    def mean(self, x: float) -> float:
        """The expected value at x."""
        return self.level + self.slope * x

    def covariance(self, x: float, y: float) -> float:
        """The covariance of the values at x and y."""
        distance = (x - y) / self.length_scale
        smooth = self.curve_variance * math.exp(-0.5 * distance * distance)
        own = self.own_variance if x == y else 0.0
        return self.level_variance + self.slope_variance * x * y + smooth + own


Observations = Mapping[int, tuple[float, float]]
"""By the index of a place: the value, and the variance of its noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Related:
    """Observations made before all values changed, or elsewhere: of the sum of the values and of a second process.

    ``change`` is the prior of that process: by how much, and how alike, the values may differ.
    """

    observed: Observations
    change: Prior


class Posterior:
    """What is believed of the values at ``places`` after observations, and of such as are ``related``."""

    def __init__(
        self,
        prior: Prior,
        places: tuple[float, ...],
        observed: Observations,
        related: Sequence[Related] = (),
    ) -> None:
        self._prior = prior
        self._places = places
        self._columns = columns_of(replace(prior, own_variance=0.0), places)
        self._at: list[int] = []
        self._deviations: list[float] = []
        self._factor: list[list[float]] = []  # Cholesky's, of the covariance of the observations: its lower triangle
        self._add(observed, None)
        self._now = len(self._at)
        for one in related:
            self._add(one.observed, one.change)
        self._standardized = _solved(self._factor, self._deviations)
        self._shares: dict[int, list[float]] = {}
        self._pairs: dict[tuple[int, int], float] = {}

    def _add(self, observed: Observations, change: Prior | None) -> None:
        """One row for each observation."""
        changes, first = None, len(self._at)
        if change is not None:
            changes = columns_of(replace(change, own_variance=0.0), self._places)
        for i, (value, noise) in sorted(observed.items()):
            self._at.append(i)
            expected, covariances = self._prior.mean(self._places[i]), self._covariances(i, self._at)
            own = 0.0
            if change is not None and changes is not None:
                expected, own = expected + change.mean(self._places[i]), change.own_variance
                covariances[first:] = map(add, covariances[first:], [changes[j][i] for j in self._at[first:]])
            variance = covariances.pop() + noise + own
            row = _solved(self._factor, covariances)
            row.append(math.sqrt(max(variance - _dot(row, row), 1e-12)))
            self._factor.append(row)
            self._deviations.append(value - expected)

    @cached_property
    def means(self) -> list[float]:
        """What is believed of the value at each place."""
        weights = _solved_back(self._factor, self._standardized)
        return [self._prior.mean(x) + _dot(weights, self._covariances(i, self._at)) for i, x in enumerate(self._places)]

    @property
    def log_evidence(self) -> float:
        """How likely the observations were: ln of their density, but for a constant (equation 2.30 there)."""
        determinant = sum(math.log(row[-1]) for row in self._factor)
        return -0.5 * _dot(self._standardized, self._standardized) - determinant

    def left_out(self) -> list[tuple[int, float, float]]:
        """Of each observation its place, by how much it exceeds what the others say, and the variance of that.

        Equations 5.12 there. Related ones are not among them.
        """
        count = len(self._factor)
        weights = _solved_back(self._factor, self._standardized)
        found = []
        for number, i in enumerate(self._at[: self._now]):
            unit = [0.0] * count
            unit[number] = 1.0
            column = _solved(self._factor, unit)
            precision = _dot(column, column)
            found.append((i, weights[number] / precision, 1.0 / precision))
        return found

    def variance(self, i: int) -> float:
        """The variance of what is believed at a place."""
        return max(0.0, self.covariance(i, i))

    def covariance(self, i: int, j: int) -> float:
        """The covariance of what is believed at two places."""
        pair = (i, j) if i < j else (j, i)
        found = self._pairs.get(pair)
        if found is None:
            before = self._prior.covariance(self._places[i], self._places[j])
            found = self._pairs[pair] = before - _dot(self._share(i), self._share(j))
        return found

    def _share(self, i: int) -> list[float]:
        found = self._shares.get(i)
        if found is None:
            found = self._shares[i] = _solved(self._factor, self._covariances(i, self._at))
        return found

    def _covariances(self, i: int, others: Iterable[int]) -> list[float]:
        """Those of the value at a place with the values at others, before any observation."""
        columns, own = self._columns, self._prior.own_variance
        return [columns[j][i] + own if j == i else columns[j][i] for j in others]


class Columns(dict[int, list[float]]):
    """Prior covariances of the values at all places with that at one, by its index: worked out when first asked for."""

    def __init__(self, prior: Prior, places: tuple[float, ...]) -> None:
        super().__init__()
        self._prior, self._places = prior, places

    def __missing__(self, i: int) -> list[float]:
        at = self._places[i]
        column = self[i] = [self._prior.covariance(x, at) for x in self._places]
        return column


columns_of = lru_cache(maxsize=64)(Columns)  # every decision on a job asks for the same


def _dot(one: Iterable[float], other: Iterable[float]) -> float:
    """The sum of products, as far as the shorter one goes."""
    total: float = sum(map(mul, one, other))
    return total


def _solved(factor: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float]:
    """Forward substitution with the lower triangle ``factor``."""
    found: list[float] = []
    for row, value in zip(factor, wanted, strict=False):
        found.append((value - sum(map(mul, found, row))) / row[-1])
    return found


def _solved_back(factor: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float]:
    """Backward substitution with the transpose of the lower triangle ``factor``."""
    found = list(wanted)
    for i in reversed(range(len(found))):
        found[i] /= factor[i][i]
        for j in range(i):
            found[j] -= factor[i][j] * found[i]
    return found
