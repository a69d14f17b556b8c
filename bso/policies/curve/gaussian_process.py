"""A Gaussian process over log2 of the batch size: a line of uncertain slope, and deviations from it.

Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), algorithm 2.1, for several hypotheses at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

MOST_COLUMNS = 128
"""Of covariances that are remembered: a job may have a thousand places."""
_JITTER = 1e-9
"""Added to the variance of each observation: no rounding makes a matrix of covariances negative."""


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

    def mean(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The expected values at x."""
        return self.level + self.slope * x

    def variance(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The variances of the values at x, but for what each place has for itself."""
        return self.level_variance + self.curve_variance + self.slope_variance * x**2

    def shared(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
        """The covariances of the values at x with those at y, (x, y), but for what each place has for itself."""
        distances = (x[:, None] - y) / self.length_scale
        # Equation 2 of docs/curve.md.
        smooth = self.curve_variance * np.exp(-0.5 * distances**2)
        return self.level_variance + self.slope_variance * x[:, None] * y + smooth


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observations:
    """n values that were seen: ``at`` (n,) are the numbers of their places, each at most once.

    ``values`` and the variances of their ``noises`` are the same for all hypotheses (n,) or have a row for each (h, n).
    """

    at: NDArray[np.intp]
    values: NDArray[np.float64]
    noises: NDArray[np.float64]

    @classmethod
    def of(cls, seen: Mapping[int, tuple[float, float]]) -> Observations:
        """From a value and the variance of its noise by the number of the place."""
        at = sorted(seen)
        return cls(
            at=np.array(at, dtype=np.intp),
            values=np.array([seen[i][0] for i in at], dtype=np.float64),
            noises=np.array([seen[i][1] for i in at], dtype=np.float64),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Related:
    """Observations made before all values changed, or elsewhere: of the sum of the values and of a second process.

    ``change`` is the prior of that process: by how much, and how alike, the values may differ.
    """

    observed: Observations
    change: Prior


class Posterior:
    """What is believed of the values at p ``places`` after observations, and of such as are ``related``.

    By each of h hypotheses: these are what places have for themselves, ``own_variances`` (h,), in the place of that of
    the prior, and the values and noises of the observations. h is 1 if there are neither.
    """

    def __init__(
        self,
        prior: Prior,
        places: tuple[float, ...],
        observed: Observations,
        related: Sequence[Related] = (),
        *,
        own_variances: NDArray[np.float64] | None = None,
    ) -> None:
        self._prior, self._x = prior, np.array(places)
        self._own = np.array([prior.own_variance]) if own_variances is None else own_variances
        self.at = observed.at
        """The numbers of the places of the n observations, (n,)."""
        related = [one for one in related if len(one.observed.at)]
        groups = [observed, *(one.observed for one in related)]
        at = self._at = np.concatenate([one.at for one in groups])
        x, shape = self._x[at], (len(self._own), len(at))
        shared, expected = prior.shared(x, x), prior.mean(x)
        first = len(observed.at)
        # Equation 3 of docs/curve.md.
        for one in related:
            part = slice(first, first + len(one.observed.at))
            shared[part, part] += one.change.shared(x[part], x[part])
            shared[part, part] += one.change.own_variance * np.eye(part.stop - first)
            expected[part] += one.change.mean(x[part])
            first = part.stop
        noises = _joined([one.noises for one in groups], shape)
        covariances = shared + self._own[:, None, None] * (at[:, None] == at)
        diagonal = np.arange(len(at))
        covariances[:, diagonal, diagonal] += noises + _JITTER
        factor = np.linalg.cholesky(covariances)
        self._log_determinants = np.log(factor.diagonal(axis1=1, axis2=2)).sum(axis=1)
        self._inverse = np.linalg.inv(factor)
        deviations = _joined([one.values for one in groups], shape) - expected
        self._standardized = (self._inverse @ deviations[:, :, None])[:, :, 0]
        self._columns: dict[int, NDArray[np.float64]] = {}

    @cached_property
    def means(self) -> NDArray[np.float64]:
        """What is believed of the value at each place, (h, p)."""
        learnt: NDArray[np.float64] = (self._shares * self._standardized[:, :, None]).sum(axis=1)
        return self._prior.mean(self._x) + learnt

    @cached_property
    def variances(self) -> NDArray[np.float64]:
        """The variances of that, (h, p)."""
        before = self._prior.variance(self._x) + self._own[:, None]
        found: NDArray[np.float64] = np.maximum(before - (self._shares**2).sum(axis=1), 0.0)
        return found

    def covariances(self, i: int) -> NDArray[np.float64]:
        """The covariances of what is believed at each place with what is believed at one, (h, p)."""
        found = self._columns.get(i)
        if found is None:
            if len(self._columns) >= MOST_COLUMNS:
                self._columns.clear()
            before = self._before(np.array([i]))[:, 0, :]
            found = self._columns[i] = before - (self._shares * self._shares[:, :, i, None]).sum(axis=1)
        return found

    @cached_property
    def log_evidence(self) -> NDArray[np.float64]:
        """How likely the observations were, (h,): ln of their density, but for a constant (equation 2.30 there)."""
        # Equation 4 of docs/curve.md.
        found: NDArray[np.float64] = -0.5 * (self._standardized**2).sum(axis=1) - self._log_determinants
        return found

    def left_out(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """By how much each observation exceeds what the others say, and the variance of that, (h, n) both.

        Equations 5.12 there. Related ones are not among the n.
        """
        weights = (self._inverse * self._standardized[:, :, None]).sum(axis=1)[:, : len(self.at)]
        precisions = (self._inverse**2).sum(axis=1)[:, : len(self.at)]
        return weights / precisions, 1.0 / precisions

    @cached_property
    def _shares(self) -> NDArray[np.float64]:
        return self._inverse @ self._before(self._at)

    def _before(self, at: NDArray[np.intp]) -> NDArray[np.float64]:
        """The covariances of the values at some places with those at each place before any observation, (h, at, p)."""
        own: NDArray[np.float64] = self._own[:, None, None] * (at[:, None] == np.arange(len(self._x)))
        return self._prior.shared(self._x[at], self._x) + own


def _joined(parts: Sequence[NDArray[np.float64]], shape: tuple[int, int]) -> NDArray[np.float64]:
    """The observations of all groups beside one another, with a row for each hypothesis."""
    return np.concatenate([np.broadcast_to(one, (shape[0], one.shape[-1])) for one in parts], axis=1)
