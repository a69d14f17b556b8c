"""What alternatives would have cost: totals with bounds and intervals, and differences from the job as it is.

The two assumptions about trainings that were stopped give two means, the bounds. The interval holds what 95 % of the
seeds gave under either of them: each seed has other trainings, drawn from the recorded ones, and other luck.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles

from bso.replay.what_if.alternatives import Alternative
from bso.replay.what_if.lasting import Tail
from bso.replay.what_if.playing import Lives, Played
from bso.replay.what_if.recorded import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean, which lies from ``least`` to ``most``, and an interval that holds 95 % of single lives."""

    least: float
    most: float
    low: float
    high: float

    def over(self, divisor: float) -> Estimate:
        """All of it divided by a positive number."""
        return Estimate(
            least=self.least / divisor, most=self.most / divisor, low=self.low / divisor, high=self.high / divisor
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an alternative would have taken over all recurrences: cost [J] by its own eta_knob, joules and seconds.

    ``more_cost`` [J] is what it costs more than the job as it is, both by the alternative's eta_knob and with the same
    luck; None for that itself. ``more_cost_share`` is its share of that cost, None as well where that is nothing.
    ``energy_j`` is None where it was not measured. ``choices`` are shares of the trainings, by batch size.
    """

    cost: Estimate
    energy_j: Estimate | None
    time_s: Estimate
    trials: Estimate
    more_cost: Estimate | None
    more_cost_share: Estimate | None
    choices: Mapping[int, float]


def answers(record: Record, played: Sequence[Alternative], lives: Sequence[Lives | None]) -> tuple[Answer | None, ...]:
    """An answer for each alternative, the first being the job as it is; None where it is unknown."""
    return tuple(
        None if own is None else _answer(record, alternative, own, lives[0] if index else None)
        for index, (alternative, own) in enumerate(zip(played, lives, strict=True))
    )


def _answer(record: Record, alternative: Alternative, lives: Lives, as_it_is: Lives | None) -> Answer:
    def cost(life: Played) -> float:
        return life.cost(eta_knob=alternative.spec.eta_knob, max_power_w=record.hardware.max_power_w)

    more = share = None
    if as_it_is is not None:
        own = _each(as_it_is, cost)
        differences = {
            tail: [one - other for one, other in zip(costs, own[tail], strict=True)]
            for tail, costs in _each(lives, cost).items()
        }
        more = _estimate(differences)
        share = _share(differences, {tail: fmean(costs) for tail, costs in own.items()})
    return Answer(
        cost=_estimate(_each(lives, cost)),
        energy_j=_estimate(_each(lives, lambda life: life.energy_j))
        if record.has_energy(alternative.batch_sizes)
        else None,
        time_s=_estimate(_each(lives, lambda life: life.time_s)),
        trials=_estimate(_each(lives, lambda life: float(sum(life.trials.values())))),
        more_cost=more,
        more_cost_share=share,
        choices=_choices(alternative, lives),
    )


def _each(lives: Lives, quantity: Callable[[Played], float]) -> dict[Tail, list[float]]:
    return {tail: [quantity(life) for life in of] for tail, of in lives.items()}


def _share(differences: Mapping[Tail, Sequence[float]], of: Mapping[Tail, float]) -> Estimate | None:
    """None where the job costs nothing as it is: by eta_knob 1, where no energy was measured."""
    if not all(of.values()):
        return None
    return _estimate({tail: [one / of[tail] for one in each] for tail, each in differences.items()})


def _estimate(values: Mapping[Tail, Sequence[float]]) -> Estimate:
    means = [fmean(of) for of in values.values()]
    ends = [_interval(of) for of in values.values()]
    return Estimate(
        least=min(means), most=max(means), low=min(low for low, _ in ends), high=max(high for _, high in ends)
    )


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """From the 2.5th to the 97.5th percentile; of few values from the least to the greatest."""
    if len(values) < 2:
        return values[0], values[0]
    cuts = quantiles(values, n=40, method="inclusive")
    return cuts[0], cuts[-1]


def _choices(alternative: Alternative, lives: Lives) -> dict[int, float]:
    counts = dict.fromkeys(alternative.batch_sizes, 0)
    for life in (life for of in lives.values() for life in of):
        for size, count in life.trials.items():
            counts[size] += count
    total = sum(counts.values())
    return {size: count / total for size, count in counts.items()}
