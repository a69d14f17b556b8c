"""What one more run of another batch size is worth: the knowledge gradient, in units of one run of the incumbent."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bso.domain.curve import normal
from bso.domain.curve.beliefs import Beliefs

HORIZON = 10
"""At least so many recurrences are expected to come; else as many as there have been."""
_LEAST_VARIANCE = 1e-12
_DEAREST = 3.0  # ln of how many times dearer a batch size may look


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """``gain``: what the recurrences to come may save; ``price``: what the run costs more than the incumbent's."""

    gain: float
    price: float

    @property
    def net(self) -> float:
        """What is left of the gain."""
        return self.gain - self.price


def horizon(recurrences: int) -> int:
    """How many recurrences are expected to come after so many."""
    return max(HORIZON, recurrences)


def value_of(
    beliefs: Beliefs,
    batch_size: int,
    incumbent: int,
    *,
    recurrences: int,
    epoch_cost: float | None = None,
    at_least: float = -math.inf,
    surprise: float = 0.0,
    told: float = 0.0,
) -> Value:
    """The value of one more run.

    ``epoch_cost``: ln of what an epoch of it is known to cost, where that was just seen. ``at_least`` bounds ln of the
    ratio of its cost to the incumbent's from below. ``told`` is the precision with which the validation curve of a run
    under way has foretold its ln epochs, ``surprise`` by how much that has moved the expectation: what it has told is
    learnt whether or not the run goes on.
    """
    mine, best = beliefs.of(batch_size), beliefs.of(incumbent)
    dearer = 0.0 if epoch_cost is None else epoch_cost - mine.epoch_cost
    variance, shared = beliefs.variance(batch_size), beliefs.covariance(batch_size, incumbent)
    longer = surprise * variance / (variance + mine.noise) if told else 0.0
    difference = max(mine.cost + dearer + longer - best.cost, at_least)
    epochs = max(0.0, variance + beliefs.variance(incumbent) - 2.0 * shared)
    costs = beliefs.cost_ratio_variance(batch_size, incumbent) if epoch_cost is None else 0.0
    total = variance + mine.noise
    learnt = (variance - shared) ** 2 / total + costs
    if told:
        learnt -= (variance - shared) ** 2 / (total + 1.0 / told)
    deviation = math.sqrt(max(learnt, _LEAST_VARIANCE))
    expected = normal.exp(min(difference + 0.5 * (epochs + costs), _DEAREST)) - 1.0
    return Value(
        gain=(horizon(recurrences) - 1) * normal.expected_saving(difference, deviation),
        price=min(max(expected, 0.0), 1.0),
    )
