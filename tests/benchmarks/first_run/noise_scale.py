"""The simple noise scale of gradients, and how many more epochs larger batches need by it.

After McCandlish, Kaplan, Amodei et al., *An Empirical Model of Large-Batch Training* (2018, arXiv 1812.06162). Batch
sizes and noise scales are in examples; slopes are of ln epochs, per octave of the batch size.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SquaredNorms:
    """Mean squared norms of gradients at the same weights, of batches of two sizes."""

    small_batch: int
    small: float
    large_batch: int
    large: float

    @property
    def signal(self) -> float:
        """An unbiased estimate of |G|^2, the squared norm of the true gradient (appendix A.1); may be negative."""
        return (self.large_batch * self.large - self.small_batch * self.small) / (self.large_batch - self.small_batch)

    @property
    def noise(self) -> float:
        """An unbiased estimate of tr(Sigma), the summed variance of one example's gradient (appendix A.1)."""
        return (self.small - self.large) / (1 / self.small_batch - 1 / self.large_batch)


def noise_scale(found: Sequence[SquaredNorms]) -> float:
    """B_simple = tr(Sigma) / |G|^2 (section 2.2), of the means of both; infinite where noise hides the gradient."""
    signal = statistics.fmean(one.signal for one in found)
    noise = statistics.fmean(one.noise for one in found)
    if noise <= 0.0:
        return 0.0
    return noise / signal if signal > 0.0 else math.inf


def ln_epochs(batch_size: int, scale: float) -> float:
    """Ln of the epochs to a target over those of the smallest batches: ln(1 + B / B_noise) (section 2.3)."""
    return math.log1p(batch_size / max(scale, 1e-9))


def slopes(values: Mapping[int, float]) -> list[float]:
    """Between neighbouring batch sizes, of values by batch size in ascending order."""
    sizes = list(values)
    return [(values[larger] - values[size]) / math.log2(larger / size) for size, larger in itertools.pairwise(sizes)]


def fitted_slope(values: Mapping[int, float]) -> float:
    """Of the straight line of least squares through all batch sizes."""
    return statistics.linear_regression([math.log2(size) for size in values], list(values.values())).slope


def predicted(sizes: Sequence[int], scale: float) -> dict[int, float]:
    """Ln epochs by batch size, up to a constant."""
    return {size: ln_epochs(size, scale) for size in sizes}


def best_scale(measured: Mapping[int, float]) -> float:
    """The noise scale whose slopes are nearest to measured ones, of 97 from 1 to 2^24 examples: known in hindsight."""
    wanted = slopes(measured)

    def error(scale: float) -> float:
        return math.dist(slopes(predicted(list(measured), scale)), wanted)

    return min((math.exp2(number / 4) for number in range(97)), key=error)
