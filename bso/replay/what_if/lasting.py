"""How many epochs a training takes to its target, where some were stopped before it.

The product-limit estimator of Kaplan and Meier, "Nonparametric estimation from incomplete observations" (JASA 1958), as
Efron, "The two sample problem with censored data" (1967), computes it: each observation has an equal weight, and a
stopped one passes its weight on, in equal parts, to all that lasted longer. Those that lasted longer than any that
reached its target keep theirs: of them it is known how long they lasted, and no more. That a training was stopped is
taken to say nothing of how much longer it would have taken, as is true of bounds on its cost and of preemptions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

_PARTS = 200


class Tail(Enum):
    """What is assumed of trainings that lasted longer than any that is known to have reached its target."""

    SHORT = "short"  # one step more would have done
    ENDLESS = "endless"  # they would never have got there


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasted:
    """A training that reached its target in its last step, or ended after so many steps without it."""

    steps: int
    is_reached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The share of trainings that reach the target in so many steps, ascending, and of those in ``open``.

    Of the latter no more is known than that they take longer than so many steps.
    """

    reached: tuple[tuple[int, float], ...]
    open: tuple[tuple[int, float], ...] = ()


def distribution_of(observed: Sequence[Lasted]) -> Distribution:
    """The product-limit estimate from at least one observation."""
    ordered = sorted(observed, key=lambda one: (one.steps, not one.is_reached))
    last = max((index for index, one in enumerate(ordered) if one.is_reached), default=-1)
    weight = 1.0 / len(ordered)  # of each that lasts as long, or longer
    reached: dict[int, float] = defaultdict(float)
    open_: dict[int, float] = defaultdict(float)
    for index, one in enumerate(ordered):
        if one.is_reached:
            reached[one.steps] += weight
        elif index > last:
            open_[one.steps] += weight
        else:
            left = len(ordered) - index
            weight *= left / (left - 1)
    return Distribution(reached=tuple(reached.items()), open=tuple(open_.items()))


def equally_likely(distribution: Distribution, tail: Tail, *, limit: int, observations: int) -> tuple[int | None, ...]:
    """Trainings that stand for a distribution, one as likely as the other; None: never within ``limit`` steps.

    There are at least 200, and a multiple of ``observations``, so that the shares are exact where none was stopped.
    """
    parts = observations * -(-_PARTS // observations)
    lengths: list[tuple[int | None, float]] = [*distribution.reached]
    lengths += [(_length(steps, tail, limit), share) for steps, share in distribution.open]
    found: list[int | None] = []
    passed = 0.0
    for length, share in lengths:
        passed += share
        found += [length] * (round(passed * parts) - len(found))
    return tuple(found)


def _length(steps: int, tail: Tail, limit: int) -> int | None:
    return steps + 1 if tail is Tail.SHORT and steps < limit else None
