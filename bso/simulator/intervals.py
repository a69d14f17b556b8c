"""Means over runs with 95 % intervals from a cluster bootstrap: first workloads are drawn again, then seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
_SEED = 20230417


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanEstimate:
    """A mean and the half width of its 95 % interval; None where there is nothing to estimate it from."""

    mean: float | None
    ci95: float | None


class Bootstrap:
    """Resampled weights of (case, seed), the same for each quantity that is estimated.

    ``clusters`` names the workload of each case. Cases of one workload are drawn together, and so are their runs with
    the same seed: they share their luck. With a single workload only seeds are drawn.
    """

    def __init__(self, clusters: Sequence[object], seeds: int) -> None:
        self._shape = (len(clusters), seeds)
        names = list(dict.fromkeys(clusters))
        self._is_possible = len(names) > 1 or seeds > 1
        generator = np.random.default_rng(_SEED)
        drawn = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=RESAMPLES)
        weights = np.zeros((RESAMPLES, *self._shape))
        for position, name in enumerate(names):
            of_seeds = generator.multinomial(drawn[:, position] * seeds, np.full(seeds, 1 / seeds))
            for case, cluster in enumerate(clusters):
                if cluster == name:
                    weights[:, case, :] = of_seeds
        self._weights = weights.reshape(RESAMPLES, -1)

    def estimate(self, values: NDArray[np.float64]) -> MeanEstimate:
        """The mean of values of shape (cases, seeds); NaN marks those that do not exist."""
        assert values.shape == self._shape, f"expected {self._shape}, got {values.shape}"
        flat = values.reshape(-1)
        exists = ~np.isnan(flat)
        if not exists.any():
            return MeanEstimate(mean=None, ci95=None)
        mean = float(flat[exists].mean())
        if not self._is_possible or exists.sum() == 1:
            return MeanEstimate(mean=mean, ci95=None)
        totals = self._weights @ np.where(exists, flat, 0.0)
        counts = self._weights @ exists.astype(np.float64)
        means = totals[counts > 0] / counts[counts > 0]
        low, high = np.quantile(means, (0.025, 0.975))
        return MeanEstimate(mean=mean, ci95=float(high - low) / 2)
