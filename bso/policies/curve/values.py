"""What runs of another batch size are worth: the knowledge gradient, in units of one run of the incumbent.

Frazier, Powell and Dayanik, The Knowledge-Gradient Policy for Correlated Normal Beliefs (2009); and, since one run may
show too little where a few would show enough, Frazier and Powell, Paradoxes in Learning and the Marginal Value of
Information (2010).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bso.policies.curve import normal
from bso.policies.curve.beliefs import Beliefs, Comparison

HORIZON = 15
"""At least so many recurrences are expected to come; else as many as there have been."""
_LEAST_VARIANCE = 1e-12


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _FirstReport:
    """What the first report of a run is expected to show, in runs of the incumbent.

    ``shown`` is ln of what the run would cost with as many epochs as are expected, and its ``deviation``; ``unseen`` is
    ln of what the uncertainty of all else adds; ``share`` is how much of the run the first report ends.
    """

    shown: float
    deviation: float
    unseen: float
    share: float

    def seen(self, worth: float) -> tuple[float, float]:
        """How likely the run goes on, as its cost is ``worth`` at most, and what it costs more than the incumbent's."""
        most = math.log(worth) - self.unseen
        # Equation 11 of docs/curve.md.
        goes_on = normal.below((most - self.shown) / self.deviation)
        finished = normal.mean_below(self.shown, self.deviation, most)
        stopped = normal.mean_below(self.shown, self.deviation, math.inf) - finished
        return goes_on, max(normal.exp(self.unseen) * finished - goes_on + self.share * stopped, 0.0)


def horizon(recurrences: int) -> int:
    """How many recurrences are expected to come after so many."""
    return max(HORIZON, recurrences)


def value_of(
    beliefs: Beliefs, batch_size: int, incumbent: int, *, recurrences: int, together: Sequence[int] = (1,)
) -> Value:
    """The value of so many runs ``together`` as are worth most per run; of the first number if none are worth it.

    What an epoch of a run costs shows with its first report, and a run that is too expensive is stopped then: it costs
    what it has cost by then, and says nothing of epochs. Else it goes on to its end. A saving below ``min_saving`` is
    none: the job would stay where it is.
    """
    compared = beliefs.compared(batch_size, incumbent)
    difference = compared.own.cost - compared.best.cost
    first_report = _first_report(beliefs, batch_size, incumbent, difference)

    def of(runs: int, of_costs: float, of_whole_costs: float) -> Value:
        of_both = of_whole_costs + compared.epochs_learnt(runs)
        left = max(horizon(recurrences) - runs, 0)
        # Equation 10 of docs/curve.md.
        least, whole = (left * _saving(difference, learnt, beliefs.min_saving) for learnt in (of_costs, of_both))
        goes_on, price = first_report.seen(1.0 + whole if beliefs.may_stop else math.inf)
        return Value(gain=goes_on * whole + (1.0 - goes_on) * least, price=runs * price, runs=runs)

    stopped = beliefs.cost_learnt(batch_size, incumbent, together, reports=1.0)
    finished = beliefs.cost_learnt(batch_size, incumbent, together)
    values = [of(*each) for each in zip(together, stopped, finished, strict=True)]
    most = max(values, key=lambda value: value.net)
    return most if most.net > 0.0 else values[0]


def _first_report(beliefs: Beliefs, batch_size: int, incumbent: int, difference: float) -> _FirstReport:
    """One report shows the epoch cost of a run but for what costs vary by within one."""
    of_run = beliefs.cost_ratio_variance(batch_size, incumbent) + beliefs.cost_noise
    # T and S of equation 11 of docs/curve.md; ``unseen`` is U / 2.
    shown = of_run * of_run / (of_run + beliefs.within_noise)
    return _FirstReport(
        shown=difference - 0.5 * beliefs.cost_noise,
        deviation=math.sqrt(shown),
        unseen=0.5 * (beliefs.epochs_ratio_variance(batch_size, incumbent) + of_run - shown),
        share=min(beliefs.interval * normal.exp(-beliefs.of(batch_size).epochs), 1.0),
    )


def gain_of(
    compared: Comparison,
    *,
    recurrences: int,
    epoch_cost: float,
    at_least: float = -math.inf,
    surprise: float = 0.0,
    precision: float = 0.0,
) -> float:
    """What the recurrences to come may save by the end of a run under way, of which ``epoch_cost`` was seen (its ln).

    ``at_least`` bounds ln of the ratio of its cost to the incumbent's from below. ``precision`` is that of what
    its validation curve says of its ln epochs, ``surprise`` by how much that has moved the expectation: this is learnt
    whether or not the run goes on.
    """
    own, shared = compared.own, compared.shared
    longer = surprise * own.variance / (own.variance + own.noise) if precision else 0.0
    known = (own.variance - shared) ** 2 / (own.variance + own.noise + 1.0 / precision) if precision else 0.0
    difference = max(own.cost + epoch_cost - own.epoch_cost + longer - compared.best.cost, at_least)
    learnt = compared.epochs_learnt(1) - known
    return max(horizon(recurrences) - 1, 0) * _saving(difference, learnt, compared.min_saving)


def _saving(difference: float, learnt: float, min_saving: float) -> float:
    deviation = math.sqrt(max(learnt, _LEAST_VARIANCE))
    return normal.expected_saving(difference, deviation, least=min_saving)
