"""Figures: measured quantities, each with its peer."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The least, the middle and the greatest of several values."""

    least: float
    middle: float
    greatest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One quantity of one case, a value per repetition.

    ``ratios`` divides each value by its peer's of the same repetition, so that what disturbs both hardly shows.
    """

    benchmark: str
    case: str
    quantity: str
    unit: str
    values: tuple[float, ...]
    peer: str = ""
    ratios: tuple[float, ...] = ()

    @property
    def spread(self) -> Spread:
        """Of the values."""
        return spread_of(self.values)

    @property
    def ratio(self) -> Spread | None:
        """Of the ratios; None without a peer."""
        return spread_of(self.ratios) if self.ratios else None


@dataclass(slots=True, kw_only=True)
class Figures:
    """Collects the figures of one benchmark."""

    benchmark: str
    found: list[Figure] = field(default_factory=list)

    def add(
        self,
        case: str,
        quantity: str,
        unit: str,
        values: Sequence[float],
        *,
        peer: str = "",
        peer_values: Sequence[float] = (),
    ) -> None:
        """Add a quantity, and the same quantity of its peer, both in the order of the repetitions."""
        ratios = tuple(mine / other for mine, other in zip(values, peer_values, strict=False) if other)
        self.found.append(
            Figure(
                benchmark=self.benchmark,
                case=case,
                quantity=quantity,
                unit=unit,
                values=tuple(values),
                peer=peer if ratios else "",
                ratios=ratios,
            )
        )


def spread_of(values: Sequence[float]) -> Spread:
    """Least, median and greatest. Raises ValueError without values."""
    return Spread(least=min(values), middle=statistics.median(values), greatest=max(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]
