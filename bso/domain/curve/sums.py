"""Sums over runs of a batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MOST_PLACES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSums:
    """What runs of one batch size say of ln epochs, or of ln epoch cost.

    ``weight`` counts runs, ``mean`` is theirs. Of epochs, censored runs are not among them: these have been fitted as
    observations with a noise of their own; ``censored_precision`` sums their 1 / variance, ``censored_sum`` what they
    say times that.
    """

    weight: float = 0.0
    mean: float = 0.0
    censored_precision: float = 0.0
    censored_sum: float = 0.0

    def observation(self, noise: float) -> tuple[float, float] | None:
        """All runs as one observation, its value and the variance of its noise; None: there are none.

        ``noise`` is the variance of ln epochs between runs.
        """
        precision = self.weight / noise
        total = precision + self.censored_precision
        return ((precision * self.mean + self.censored_sum) / total, 1.0 / total) if total > 0.0 else None

    def plus(self, other: RunSums, share: float) -> RunSums:
        """The sums with a share of others."""
        weight = self.weight + share * other.weight
        total = self.weight * self.mean + share * other.weight * other.mean
        return RunSums(
            weight=weight,
            mean=total / weight if weight > 0.0 else 0.0,
            censored_precision=self.censored_precision + share * other.censored_precision,
            censored_sum=self.censored_sum + share * other.censored_sum,
        )


def on_one_level(runs: Mapping[int, tuple[RunSums, RunSums]]) -> dict[int, RunSums]:
    """What runs say of each batch size, from those since a change and those before it: these moved by that change.

    By how much, those batch sizes say that have both; where none has, those before the change say nothing. What was
    before counts only where nothing has run since.
    """
    latest = {size: since for size, (since, _) in runs.items() if since.weight}
    older = {size: before for size, (_, before) in runs.items() if before.weight}
    if not latest:
        return older
    shared = {size: min(latest[size].weight, older[size].weight) for size in latest.keys() & older.keys()}
    if not shared:
        return latest
    moved = sum(weight * (latest[size].mean - older[size].mean) for size, weight in sorted(shared.items()))
    shift = moved / sum(shared[size] for size in sorted(shared))
    return {
        size: RunSums(weight=sums.weight, mean=sums.mean + shift) for size, sums in older.items() if size not in latest
    } | latest


def on_fewer_places(
    seen: Sequence[tuple[int, float, float]], places: Sequence[float]
) -> Sequence[tuple[int, float, float]]:
    """What was seen at each place, as number, value and weight; where places are more than 64, of neighbours as one.

    A posterior takes the cube of their number. 64 of them over ten octaves lie far closer than values there may differ.
    """
    if len(seen) <= _MOST_PLACES:
        return seen
    first, last = (places[i] for i in (min(seen)[0], max(seen)[0]))
    bins: dict[int, list[tuple[int, float, float]]] = {}
    for one in sorted(seen):
        number = min(_MOST_PLACES - 1, int((places[one[0]] - first) / (last - first) * _MOST_PLACES))
        bins.setdefault(number, []).append(one)
    return [_as_one(some) for some in bins.values()]


def _as_one(some: Sequence[tuple[int, float, float]]) -> tuple[int, float, float]:
    total = sum(weight for _, _, weight in some)
    value = sum(value * weight for _, value, weight in some) / total
    return some[len(some) // 2][0], value, total
