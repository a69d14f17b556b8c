"""Sufficient statistics of costs, updated one by one (Welford, Technometrics 1962)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CostStatistics:
    """Number, mean and sum of squared deviations of costs [J]."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, cost: float) -> CostStatistics:
        """The statistics with one more cost."""
        count = self.count + 1
        delta = cost - self.mean
        mean = self.mean + delta / count
        return CostStatistics(count=count, mean=mean, squares=self.squares + delta * (cost - mean))

    @property
    def variance(self) -> float:
        """The sample variance (ddof 1) [J^2]; 0 for fewer than two costs."""
        return self.squares / (self.count - 1) if self.count > 1 else 0.0


def statistics_of(costs: Iterable[float]) -> CostStatistics:
    """The statistics of a sequence of costs, in its order."""
    result = CostStatistics()
    for cost in costs:
        result = result.add(cost)
    return result
