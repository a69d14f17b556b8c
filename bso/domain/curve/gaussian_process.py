"""A Gaussian process over log2 of the batch size: a line of uncertain slope, and deviations from it.

Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), algorithm 2.1. In plain Python: the matrices
have as many rows as batch sizes were tried, and a decision must not depend on a numerical library.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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


class Posterior:
    """What is believed of the values at ``places`` after observations.

    Those of ``before`` were made before all values changed, by what ``change`` expects: they are of the sum of the
    values and of a second process with that prior.
    """

    def __init__(
        self,
        prior: Prior,
        places: Sequence[float],
        observed: Observations,
        *,
        before: Observations | None = None,
        change: Prior | None = None,
    ) -> None:
        self._prior = prior
        self._places = places
        seen = [(places[i], *observed[i]) for i in sorted(observed)]
        changed = len(seen)
        if before and change is not None:
            seen.extend((places[i], value - change.mean(places[i]), noise) for i, (value, noise) in before.items())
        at = [x for x, _, _ in seen]
        factor: list[list[float]] = []  # lower triangle of the Cholesky decomposition of the observations' covariance
        for i, (x, _, noise) in enumerate(seen):
            covariances = [prior.covariance(x, y) for y in at[: i + 1]]
            if change is not None and i >= changed:
                both = [change.covariance(x, y) for y in at[changed : i + 1]]
                covariances[changed:] = [a + b for a, b in zip(covariances[changed:], both, strict=True)]
            row = _solved(factor, covariances[:i])
            rest = covariances[i] + noise - _dot(row, row)
            factor.append([*row, math.sqrt(max(rest, 1e-12))])
        self._at, self._factor = at, factor
        weights = _solved_back(factor, _solved(factor, [value - prior.mean(x) for x, value, _ in seen]))
        self.means = [
            prior.mean(x) + sum(weight * prior.covariance(x, y) for weight, y in zip(weights, at, strict=True))
            for x in places
        ]
        self._shares: dict[int, list[float]] = {}

    def variance(self, i: int) -> float:
        """The variance of what is believed at a place."""
        return max(0.0, self.covariance(i, i))

    def covariance(self, i: int, j: int) -> float:
        """The covariance of what is believed at two places."""
        return self._prior.covariance(self._places[i], self._places[j]) - _dot(self._share(i), self._share(j))

    def _share(self, i: int) -> list[float]:
        found = self._shares.get(i)
        if found is None:
            found = _solved(self._factor, [self._prior.covariance(self._places[i], y) for y in self._at])
            self._shares[i] = found
        return found


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _solved(factor: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float]:
    """Forward substitution with the lower triangle ``factor``."""
    found: list[float] = []
    for row, value in zip(factor, wanted, strict=False):
        found.append((value - sum(a * b for a, b in zip(row, found, strict=False))) / row[-1])
    return found


def _solved_back(factor: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float]:
    """Backward substitution with the transpose of the lower triangle ``factor``."""
    found = list(wanted)
    for i in reversed(range(len(found))):
        found[i] /= factor[i][i]
        for j in range(i):
            found[j] -= factor[i][j] * found[i]
    return found
