"""Validation curves: how near a run has come to its target, and how many epochs runs that came so near needed in all.

Landmarks are the powers of two of the distance to the target, in the metric's own unit. The curves of one job differ
mostly by how far they are stretched, whatever the batch size: of the runs that passed a landmark and then converged the
job remembers how many times the epochs until then they needed in all. A metric that never moves passes no landmark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bso.domain.frozen_values import replace
from bso.domain.quantities import figure

MOST_PASSED = 16
"""Landmarks of one run; a job remembers twice as many."""
_FEWEST_RUNS = 1.5  # a landmark that one run has passed says nothing; what was partly forgotten counts less
_GUESS_WEIGHT = 0.5  # in degrees of freedom: of the guess that a landmark says no more than the batch size
_LEAST_VARIANCE = 0.05**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A landmark, 2**``power`` before the target, and the progress in epochs at which a run passed it."""

    power: int
    epochs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Approach:
    """The landmarks that a running trial has passed, each nearer to the target than the one before.

    The first one was passed before the first report, at an unknown time: its ``epochs`` are 0.
    """

    passed: tuple[Passed, ...] = ()

    def after(self, previous: float, distance: float, *, before: float, now: float) -> Approach:
        """The approach when the distance to the target has changed between two reports, at these epochs.

        A landmark counts once, however the metric wavers; between the reports the metric is taken to move evenly.
        """
        is_known = math.isfinite(previous) and math.isfinite(distance)
        if not is_known or previous == distance or previous <= 0.0 or distance <= 0.0:
            return self
        passed = self.passed or (Passed(power=_last_passed(previous), epochs=0.0),)
        nearest = max(_last_passed(distance), passed[0].power - MOST_PASSED + 1)
        new = [
            Passed(power=power, epochs=before + (now - before) * _share(previous, distance, math.ldexp(1.0, power)))
            for power in range(passed[-1].power - 1, nearest - 1, -1)
        ]
        return self if self.passed and not new else Approach(passed=(*passed, *new))


def known_approach(trial_number: int, approaches: Mapping[int, Approach]) -> Approach:
    """How near a running trial has come to the target; an empty approach if that is not known."""
    return approaches.get(trial_number, _NOWHERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Landmark:
    """Of the converged runs that passed a landmark: ln of how many times the epochs until then they needed in all.

    ``weight`` counts the runs, less where older ones were partly forgotten; ``squares`` sums squared deviations.
    """

    weight: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def with_run(self, ln_ratio: float) -> Landmark:
        """The landmark after one more run."""
        weight = self.weight + 1.0
        shift = ln_ratio - self.mean
        mean = self.mean + shift / weight
        return Landmark(weight=weight, mean=mean, squares=self.squares + shift * (ln_ratio - mean))

    def faded(self, kept: float) -> Landmark:
        """The landmark when only a part of what it says still counts."""
        return replace(self, weight=self.weight * kept, squares=self.squares * kept)

    def variance(self, noise: float) -> float:
        """The variance of a prediction of ln epochs; ``noise`` is what is guessed before any run."""
        freedom = max(self.weight - 1.0, 0.0)
        spread = (_GUESS_WEIGHT * noise + self.squares) / (_GUESS_WEIGHT + freedom)
        return max(spread, _LEAST_VARIANCE) * (1.0 + 1.0 / self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """What a converged run says of a landmark: ln of all its epochs over those until it passed."""

    power: int
    ln_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Ln of the epochs that a run needs in all, by the landmark passed ``at`` that many epochs.

    ``precision`` (1 / variance) is what this adds to what its batch size says.
    """

    ln_epochs: float
    precision: float
    at: float

    def combined(self, expected: float, deviation: float) -> tuple[float, float]:
        """Mean and standard deviation of ln epochs, with those that were believed without the curve."""
        own = 1.0 / deviation**2
        total = own + self.precision
        return (own * expected + self.precision * self.ln_epochs) / total, 1.0 / math.sqrt(total)

    @property
    def words(self) -> str:
        """What the curve says, in words."""
        whole = figure(math.exp(self.ln_epochs))
        return (
            f"at epoch {figure(self.at)} it was so close to the target that, by earlier runs, it needs {whole} in all"
        )


def forecast(landmarks: Mapping[int, Landmark], approach: Approach, noise: float) -> Forecast | None:
    """What a run's curve says of its epochs; None: nothing. ``noise``: variance of ln epochs between runs of its size.

    The early part of a curve shows how fast a batch size learns, not how lucky the run is: a landmark counts by how
    much better it has predicted than the mean of a batch size does.
    """
    best: Forecast | None = None
    for one in approach.passed:
        landmark = landmarks.get(one.power)
        if landmark is None or landmark.weight < _FEWEST_RUNS or one.epochs <= 0.0:
            continue
        precision = 1.0 / landmark.variance(noise) - 1.0 / noise
        if precision > 0.0 and (best is None or precision >= best.precision):
            best = Forecast(ln_epochs=math.log(one.epochs) + landmark.mean, precision=precision, at=one.epochs)
    return best


def ratios(approach: Approach, epochs: float) -> tuple[Ratio, ...]:
    """What a run says of its landmarks when it has converged after so many epochs."""
    return tuple(
        Ratio(power=one.power, ln_ratio=math.log(epochs / one.epochs)) for one in approach.passed if one.epochs > 0.0
    )


def with_ratios(landmarks: Mapping[int, Landmark], learnt: Sequence[Ratio], kept: float) -> Mapping[int, Landmark]:
    """The landmarks after a run; ``kept`` is the part of what was known that still counts."""
    if not learnt and kept >= 1.0:
        return landmarks
    known = dict(landmarks) if kept >= 1.0 else {power: one.faded(kept) for power, one in landmarks.items()}
    for one in learnt:
        known[one.power] = known.get(one.power, _UNKNOWN).with_run(one.ln_ratio)
    most = sorted(known, key=lambda power: (-known[power].weight, -power))[: 2 * MOST_PASSED]
    return {power: known[power] for power in most}


def _last_passed(distance: float) -> int:
    """The exponent of the nearest landmark that is at this distance or farther off."""
    mantissa, exponent = math.frexp(distance)
    return exponent - 1 if mantissa == 0.5 else exponent


def _share(previous: float, distance: float, landmark: float) -> float:
    """Where between two distances a landmark lies, from 0 to 1."""
    return min(max((previous - landmark) / (previous - distance), 0.0), 1.0)


_UNKNOWN = Landmark()
_NOWHERE = Approach()
