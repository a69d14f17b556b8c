"""Means, percentiles and ratios with the ends of their 95 % intervals, from a cluster bootstrap."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bso.simulator.intervals import Bootstrap

Interval = tuple[float, float, float]
"""The lower end of the 95 % interval, what was found, and the upper end."""

Values = NDArray[np.float64]
"""One value for each case and seed, in this order of the axes."""


class Resampled(Bootstrap):
    """Draws workloads again, then seeds; each quantity is found anew in every draw."""

    def mean(self, values: Values) -> Interval:
        """The mean."""
        return _interval(float(values.mean()), self._sums(values) / self._weights.sum(axis=1))

    def ratio(self, values: Values, others: Values) -> Interval | None:
        """The mean of values over that of others; None where the latter may be 0 or less."""
        below = self._sums(others)
        if others.mean() <= 0 or below.min() <= 0:
            return None
        return _interval(float(values.mean() / others.mean()), self._sums(values) / below)

    def percentile(self, values: Values, share: float) -> Interval:
        """The smallest value that at least this share of the values does not exceed (nearest rank)."""
        flat = values.reshape(-1)
        order = np.argsort(flat)
        counts = np.cumsum(self._weights[:, order], axis=1)
        enough = share * (1 - 1e-12)  # a share of a hundred values is a whole number of them, whatever floats say
        found = flat[order[np.argmax(counts >= enough * counts[:, -1:], axis=1)]]
        rank = max(0, int(np.ceil(enough * flat.size)) - 1)
        return _interval(float(flat[order[rank]]), found)

    def _sums(self, values: Values) -> Values:
        sums: Values = self._weights @ values.reshape(-1)
        return sums


def table_over(rows: Sequence[Sequence[float]]) -> Values:
    """Values from lists: a row per case, a column per seed."""
    return np.array(rows, dtype=np.float64)


def _interval(found: float, drawn: Values) -> Interval:
    low, high = np.quantile(drawn, (0.025, 0.975))
    return min(float(low), found), found, max(float(high), found)
