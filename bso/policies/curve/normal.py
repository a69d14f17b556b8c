"""The normal and the log-normal distribution, as far as the curve policy needs them."""

from __future__ import annotations

import math

_ROOT_2, _ROOT_2_PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)
_MOST = 700.0  # exp of more overflows


def below(z: float) -> float:
    """P(Z <= z) of a standard normal Z."""
    return 0.5 * math.erfc(-z / _ROOT_2)


def above(z: float) -> float:
    """P(Z > z) of a standard normal Z; exact far out, too."""
    return 0.5 * math.erfc(z / _ROOT_2)


def density(z: float) -> float:
    """The density of a standard normal at z."""
    return math.exp(-0.5 * z * z) / _ROOT_2_PI


def exp(x: float) -> float:
    """E to the x, huge instead of an overflow."""
    return math.exp(min(x, _MOST))


def expected_saving(mean: float, deviation: float, least: float = 0.0) -> float:
    """E[s; s >= least] of the saving s = 1 - e^z, for z of this mean and standard deviation: of a cost of 1."""
    highest = math.log1p(-least)
    if deviation <= 0.0:
        return max(0.0, 1.0 - exp(mean)) if mean <= highest else 0.0
    z = (highest - mean) / deviation
    return max(0.0, below(z) - exp(mean + 0.5 * deviation * deviation) * below(z - deviation))


def mean_below(mean: float, deviation: float, most: float) -> float:
    """E[e^z; z <= most] for z of this mean and standard deviation."""
    whole = exp(mean + 0.5 * deviation * deviation)
    return whole if most == math.inf else whole * below((most - mean) / deviation - deviation)


def truncated_mean(mean: float, deviation: float, least: float, most: float) -> float:
    """E[min(X, most); X > least] / P(X > least) for log-normal X, ``mean`` and ``deviation`` being those of ln X."""
    low, high = (math.log(least) - mean) / deviation, (math.log(most) - mean) / deviation
    between = exp(mean + 0.5 * deviation * deviation) * (below(deviation - low) - below(deviation - high))
    return (between + most * above(high)) / above(low)
