"""Gaussian Thompson sampling over batch sizes (Zeus, NSDI '23, algorithm 1 and section 4.3).

The reward of a trial is its negated cost. Each arm has a conjugate normal prior on its mean reward, and its reward
precision is estimated from its own costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bso.domain.randomness import standard_normal
from bso.domain.statistics import CostStatistics

RELATIVE_NOISE_FLOOR = 0.01
"""Costs that agree better than this [of their mean] are not believed to: equal costs have no infinite precision."""

_LEAST_VARIANCE = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPosterior:
    """What is believed about an arm's mean cost [J]: a normal distribution."""

    mean: float
    std: float


def posterior_of(costs: CostStatistics, *, prior_mean: float, prior_precision: float) -> CostPosterior | None:
    """The posterior of an arm's mean cost; None without any cost and with a flat prior.

    ``prior_mean`` is that of the reward (the negated cost) [J], ``prior_precision`` is in 1/J^2, 0 being flat.
    """
    if not costs.count:
        return CostPosterior(mean=-prior_mean, std=prior_precision**-0.5) if prior_precision > 0 else None
    variance = max(costs.variance, (RELATIVE_NOISE_FLOOR * costs.mean) ** 2, _LEAST_VARIANCE)
    precision_of_costs = costs.count / variance
    precision = prior_precision + precision_of_costs
    share = precision_of_costs / precision
    return CostPosterior(mean=share * costs.mean - (1.0 - share) * prior_mean, std=precision**-0.5)


def sample_cheapest(posteriors: Mapping[int, CostPosterior], *, seed: int, trial_number: int) -> tuple[int, float]:
    """The arm whose sampled mean cost is the lowest, and that sample [J]: one independent draw per arm."""
    samples = {
        batch_size: posterior.mean + posterior.std * standard_normal(seed, trial_number, batch_size)
        for batch_size, posterior in posteriors.items()
    }
    chosen = min(samples, key=lambda batch_size: (samples[batch_size], batch_size))
    return chosen, samples[chosen]
