"""Means of few and of censored observations, and how uncertain they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from bso.domain.statistics import statistics_of

_TWO_SIDED = NormalDist().inv_cdf(0.975)
_ROOT_2, _ROOT_2_PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)
_FAR = 30.0  # standard deviations; beyond them the tail of the normal distribution is computed by its expansion
_STEPS, _PRECISE = 50, 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A variance within groups, estimated from ``squares`` (of deviations) with ``freedom`` (degrees of it)."""

    squares: float
    freedom: float

    @classmethod
    def within(cls, groups: Iterable[Iterable[float]]) -> Spread:
        """That of observations around the mean of their group, in all groups together."""
        found = [statistics_of(group) for group in groups]
        return cls(
            squares=sum(one.squares for one in found), freedom=sum(float(max(0, one.count - 1)) for one in found)
        )

    def with_guess(self, variance: float, freedom: float) -> Spread:
        """The same with a guess from before, which counts like so many degrees of freedom."""
        return Spread(squares=self.squares + freedom * variance, freedom=self.freedom + freedom)

    @property
    def variance(self) -> float:
        """The variance; freedom must not be 0."""
        return self.squares / self.freedom

    @property
    def deviation(self) -> float:
        """The standard deviation; freedom must not be 0."""
        return math.sqrt(self.variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class CensoredMean:
    """A mean, and as how many complete observations those that it is estimated from count."""

    mean: float
    weight: float


def mean_with_censored(complete: Sequence[float], at_least: Sequence[float], deviation: float) -> CensoredMean:
    """The mean of normal observations of this standard deviation, some of which are only known to be larger.

    The estimate of maximal likelihood (Tobin, "Estimation of relationships for limited dependent variables",
    Econometrica 1958), found by Newton's method, and its Fisher information. Some observation must be complete.
    """
    mean = fmean(complete)
    weight = float(len(complete))
    for _ in range(_STEPS):
        score, weight = sum((value - mean) / deviation for value in complete), float(len(complete))
        for least in at_least:
            z = (least - mean) / deviation
            hazard = _hazard(z)
            score, weight = score + hazard, weight + hazard * (hazard - z)
        mean += deviation * score / weight
        if abs(score / weight) < _PRECISE:
            break
    return CensoredMean(mean=mean, weight=weight)


def deviations_of_95(freedom: float) -> float:
    """How many standard deviations on either side of a mean hold 95 %, if they are estimated with this freedom.

    Student's t by its expansion in 1 / freedom (Fisher, 1926), which is right to 1 % from 4 degrees on.
    """
    z = _TWO_SIDED
    first = (z**3 + z) / (4.0 * freedom)
    second = (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / (96.0 * freedom**2)
    third = (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / (384.0 * freedom**3)
    return z + first + second + third


def _hazard(z: float) -> float:
    """The density of a standard normal at z, divided by the probability of more than z."""
    if z > _FAR:
        return z + 1.0 / z
    return 2.0 * math.exp(-0.5 * z * z) / _ROOT_2_PI / math.erfc(z / _ROOT_2)
