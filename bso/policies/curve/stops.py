"""Whether a trial is worth going on with: the doubling bound for all, and for explorations what they still promise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bso.domain.quantities import joules
from bso.policies.curve import normal
from bso.policies.curve.beliefs import Belief, Comparison
from bso.policies.curve.validation import Forecast
from bso.policies.curve.values import gain_of

_MOST_DOUBLINGS = 64
_LEAST_NOISE = 0.15**2
_HOPELESS, _OVERDUE = 1e-3, 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Underway:
    """A running trial that has not reached its target: progress in epochs, cost [J].

    ``epoch_cost`` is ln of what an epoch of it costs, ``usual_cost`` of what one of its batch size usually costs now.
    ``interval`` is the progress between two evaluations: it may reach the target anywhere in the next one.
    ``forecast`` is what its validation curve says; None: nothing.
    """

    epochs: float
    interval: float
    cost: float
    epoch_cost: float
    usual_cost: float
    max_epochs: int
    is_second_look: bool
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """What is expected of a running trial.

    Its ln epochs so far are ``z`` standard deviations above the mean of a run that converges; such a run takes longer
    with probability ``longer``. ``left`` is the expected number of further epochs, ``converges`` the probability that
    it reaches its target. ``surprise`` is the amount by which its validation curve has raised the expected ln epochs.
    """

    z: float
    longer: float
    left: float
    converges: float
    surprise: float

    @property
    def is_hopeless(self) -> bool:
        """Whether it will hardly reach its target any more."""
        return self.longer < _OVERDUE or self.converges < _HOPELESS


def bound_of(best: Belief, *, beta: float, aborts: int, rise: float = 0.0) -> float:
    """The cost [J] above which a trial is stopped: ``beta`` times what a converged run of the incumbent (``best``)
    is expected to cost.

    Its own trials get twice that for each of the ``aborts`` of the recurrence, so that some trial always ends; others
    have none. ``rise``: ln of the factor by which epoch costs have risen since.
    """
    # Equation 12 of docs/curve.md.
    return beta * normal.exp(best.converged_cost + rise) * 2.0 ** min(aborts, _MOST_DOUBLINGS)


def why_to_stop(compared: Comparison, underway: Underway, *, recurrences: int, rise: float) -> str | None:
    """Why an exploration is not worth its further cost; None: it is.

    It goes on while the expected cost to finish, over the probability that it ever does, is at most one run of the
    incumbent and what its result would save.
    """
    size, incumbent = compared.batch_size, compared.incumbent
    if underway.is_second_look:
        return None
    best, prospect = compared.best.cost + rise, prospect_of(compared.own, underway)
    if prospect.longer < _OVERDUE:
        return f"{size} takes far longer than expected"
    if prospect.is_hopeless:
        return f"{size} is unlikely to converge within {underway.max_epochs} epochs"
    # Equation 13 of docs/curve.md.
    to_finish = prospect.left * normal.exp(underway.epoch_cost) / prospect.converges
    at_least = math.log(_reached(underway)) + underway.usual_cost - best if prospect.z > 0.0 else -math.inf
    seen = underway.usual_cost - rise
    gain = gain_of(
        compared,
        recurrences=recurrences,
        epoch_cost=seen,
        at_least=at_least,
        surprise=prospect.surprise,
        precision=0.0 if underway.forecast is None else underway.forecast.precision,
    )
    worth = normal.exp(best) * (1.0 + gain * prospect.converges)
    if to_finish <= worth:
        return None
    return (
        f"{size} is expected to cost {joules(to_finish)} more, and going on is worth {joules(worth)} at most: "
        f"{incumbent} is cheaper{_by_its_curve(underway.forecast)}"
    )


def is_nearly_there(compared: Comparison, underway: Underway, *, rise: float, bound: float) -> bool:
    """Whether a trial near its bound [J] will finish for less than a fresh run of the incumbent costs.

    Its validation curve must say so, or it has come to its bound only because its own epochs cost more than usual.
    """
    if underway.forecast is None and underway.epochs * normal.exp(underway.usual_cost) > bound:
        return False
    prospect = prospect_of(compared.own, underway)
    if prospect.is_hopeless:
        return False
    to_finish = prospect.left * normal.exp(underway.epoch_cost) / prospect.converges
    return to_finish <= normal.exp(compared.best.cost + rise)


def prospect_of(belief: Belief, underway: Underway) -> Prospect:
    """What is left of a trial, by what is believed of its batch size and by its validation curve."""
    expected, surprise = belief.epochs, 0.0
    deviation = math.sqrt(belief.variance + max(belief.noise, _LEAST_NOISE))
    if underway.forecast is not None:
        expected, deviation = underway.forecast.combined(expected, deviation)
        surprise = expected - belief.epochs
    reached, most = _reached(underway), underway.max_epochs + 0.5 * underway.interval
    z, z_most = (math.log(reached) - expected) / deviation, (math.log(most) - expected) / deviation
    longer, much_longer = normal.above(z), normal.above(z_most)
    if longer < _OVERDUE:
        return Prospect(z=z, longer=longer, left=math.inf, converges=0.0, surprise=surprise)
    # Equation 14 of docs/curve.md.
    total = normal.truncated_mean(expected, deviation, reached, underway.max_epochs)
    return Prospect(
        z=z,
        longer=longer,
        left=max(total - underway.epochs, 0.5 * underway.interval),
        converges=(1.0 - belief.fails) * (longer - much_longer) / (belief.fails + (1.0 - belief.fails) * longer),
        surprise=surprise,
    )


def _reached(underway: Underway) -> float:
    return underway.epochs + 0.5 * underway.interval


def _by_its_curve(forecast: Forecast | None) -> str:
    return "" if forecast is None else f"; {forecast.words}"
