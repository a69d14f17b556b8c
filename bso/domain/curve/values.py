"""What runs of another batch size are worth: the knowledge gradient, in units of one run of the incumbent.

Frazier, Powell and Dayanik, The Knowledge-Gradient Policy for Correlated Normal Beliefs (2009); and, since one run may
show too little where a few would show enough, Frazier and Powell, Paradoxes in Learning and the Marginal Value of
Information (2010).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bso.domain.curve import normal
from bso.domain.curve.beliefs import Beliefs

HORIZON = 15
"""At least so many recurrences are expected to come; else as many as there have been."""
_LEAST_VARIANCE = 1e-12
_MOST_EXPENSIVE = 3.0  # ln of how many times more expensive a batch size may look


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """``gain``: what the recurrences to come may save; ``price``: what the ``runs`` cost more than the incumbent's."""

    gain: float
    price: float
    runs: int = 1

    @property
    def net(self) -> float:
        """What is left of the gain, per run."""
        return (self.gain - self.price) / self.runs


def horizon(recurrences: int) -> int:
    """How many recurrences are expected to come after so many."""
    return max(HORIZON, recurrences)


def value_of(
    beliefs: Beliefs,
    batch_size: int,
    incumbent: int,
    *,
    recurrences: int,
    together: Sequence[int] = (1,),
    epoch_cost: float | None = None,
    at_least: float = -math.inf,
    surprise: float = 0.0,
    told: float = 0.0,
) -> Value:
    """The value of so many runs ``together`` as are worth most per run; of the first number if none are worth it.

    ``epoch_cost``: ln of what an epoch of it is known to cost, where that was just seen. ``at_least`` bounds ln of the
    ratio of its cost to the incumbent's from below. ``told`` is the precision with which the validation curve of a run
    under way has foretold its ln epochs, ``surprise`` by how much that has moved the expectation: what it has told is
    learnt whether or not the run goes on.
    """
    mine, best = beliefs.of(batch_size), beliefs.of(incumbent)
    more = 0.0 if epoch_cost is None else epoch_cost - mine.epoch_cost
    variance, shared = beliefs.variance(batch_size), beliefs.covariance(batch_size, incumbent)
    longer = surprise * variance / (variance + mine.noise) if told else 0.0
    difference = max(mine.cost + more + longer - best.cost, at_least)
    epochs = beliefs.epochs_ratio_variance(batch_size, incumbent)
    costs = beliefs.cost_ratio_variance(batch_size, incumbent) if epoch_cost is None else 0.0
    price = min(max(normal.exp(min(difference + 0.5 * (epochs + costs), _MOST_EXPENSIVE)) - 1.0, 0.0), 1.0)
    known = (variance - shared) ** 2 / (variance + mine.noise + 1.0 / told) if told else 0.0

    def of(runs: int) -> Value:
        of_costs = beliefs.cost_learnt(batch_size, incumbent, runs) if epoch_cost is None else 0.0
        learnt = beliefs.epochs_learnt(batch_size, incumbent, runs) + of_costs - known
        saving = normal.expected_saving(difference, math.sqrt(max(learnt, _LEAST_VARIANCE)))
        return Value(gain=max(horizon(recurrences) - runs, 0) * saving, price=runs * price, runs=runs)

    values = [of(runs) for runs in together]
    most = max(values, key=lambda value: value.net)
    return most if most.net > 0.0 else values[0]
