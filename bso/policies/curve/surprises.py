"""Whether trainings have changed: two CUSUM tests (Page, 1954) on how much longer or shorter runs take than expected.

One notices few large surprises soon, the other many small ones in the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bso.domain.frozen_values import replace
from bso.policies.curve import normal

_SLACK, _ALARM = 1.0, 4.0  # standard deviations: what a surprise may be, and a sum of what exceeds it
_LEAST_DEVIATION = 0.16  # less would take the rare long run of a batch size that hardly varies for a change
_ODDS = 0.5  # how likely it is that a run of a batch size is stopped after trainings have become longer
_SMALL_SLACK, _SMALL_ALARM, _SMALL_MOST = 0.5, 8.0, 2.0  # of the test for small surprises; larger ones count as that
_SMALL_LEAST_DEVIATION = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Surprises:
    """Sums of standardized surprises of one batch size, less what each may be.

    ``rising`` and ``falling`` are those of the test for large surprises, ``creeping_up`` and ``creeping_down`` those of
    the test for small ones.
    """

    rising: float = 0.0
    falling: float = 0.0
    creeping_up: float = 0.0
    creeping_down: float = 0.0

    @property
    def is_change(self) -> bool:
        """Whether they are too many to be chance."""
        large, small = max(self.rising, self.falling), max(self.creeping_up, self.creeping_down)
        return large > _ALARM or small > _SMALL_ALARM

    @property
    def left(self) -> Surprises:
        """The sums that the next run adds to: none after a change."""
        return NO_SURPRISES if self.is_change else self

    def after_run(self, excess: float, deviation: float) -> Surprises:
        """The sums after a run that converged; both of ln epochs: its excess, and what is usual of that."""
        large = excess / max(deviation, _LEAST_DEVIATION)
        small = min(max(excess / max(deviation, _SMALL_LEAST_DEVIATION), -_SMALL_MOST), _SMALL_MOST)
        return Surprises(
            # equation (16) of docs/curve.md
            rising=max(0.0, self.rising + large - _SLACK),
            falling=max(0.0, self.falling - large - _SLACK),
            creeping_up=max(0.0, self.creeping_up + small - _SMALL_SLACK),
            creeping_down=max(0.0, self.creeping_down - small - _SMALL_SLACK),
        )

    def after_stop(self, excess: float, deviation: float, fails: float) -> Surprises:
        """The sums after a run that was stopped, with this excess when it was.

        If a run takes so long more rarely than it fails, with probability ``fails``, it will hardly converge. Either it
        is one of those that fail now and then, or trainings have become longer: half the logarithm of how much likelier
        the stop is then. (A surprise less the slack is that for a change by two deviations.)
        """
        usual = max(deviation, _LEAST_DEVIATION)
        if fails >= _ODDS or normal.above(excess / usual) >= fails:
            return self
        return replace(self, rising=self.rising + 0.5 * math.log(_ODDS / fails))


NO_SURPRISES = Surprises()
