"""How trainings profile power limits: the steps under each, by the rules that the client's PowerLimitOptimizer obeys.

A batch size without a power profile trains under the best limit of the nearest one that has one, and its own limits are
measured once it was evaluated. From the second step on each limit has ten steps to warm up and forty that are measured,
in one epoch or in several; the steps after the last one are made under the best limit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bso.domain.commands import PowerMeasurement
from bso.domain.power_sweep import (
    CloseWindow,
    Plan,
    SetLimit,
    Step,
    begin_profiling,
    begin_step,
    cost_of_sample,
    end_epoch,
    is_low_enough,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptEpoch:
    """One epoch: the share of its steps under each power limit [W], and whether one was set in order to measure it."""

    shares: Mapping[float, float]
    is_profiling: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChooser:
    """Chooses the limit [W] under which a sample costs least, as the client's ``Cost`` does."""

    eta_knob: float
    max_power_w: float

    def best_w(self, measured: Sequence[PowerMeasurement]) -> float:
        """Choose among these; the lower one of two that cost the same."""
        return min(measured, key=lambda one: (self._cost(one), one.power_limit_w)).power_limit_w

    def _cost(self, measured: PowerMeasurement) -> float:
        return cost_of_sample(measured, eta_knob=self.eta_knob, max_power_w=self.max_power_w)


class LimitSweep:
    """The power limits of one training, epoch by epoch.

    ``limits`` is what would be measured under each one, ``nearest`` what was measured of the nearest batch size;
    ``steps`` are those of an epoch.
    """

    def __init__(
        self,
        limits: Sequence[PowerMeasurement],
        *,
        nearest: Sequence[PowerMeasurement],
        chooser: LimitChooser,
        steps: int,
    ) -> None:
        self.measured: list[PowerMeasurement] = []
        self._by_limit = {one.power_limit_w: one for one in limits}
        known = [one for one in nearest if one.power_limit_w in self._by_limit]
        self._limit_w = chooser.best_w(known) if known else max(self._by_limit)
        self._is_waiting = bool(known)
        plan = Plan(limits_w=tuple(sorted(self._by_limit, reverse=True)), resting_w=self._limit_w)
        self._state = begin_profiling(plan)
        self._chooser = chooser
        self._steps = steps

    @property
    def is_done(self) -> bool:
        """Whether every limit was measured that may be of use."""
        return self._state.is_done or is_low_enough(self.measured)

    @property
    def best_w(self) -> float:
        """The best limit [W] of those that were measured."""
        return self._chooser.best_w(self.measured)

    def next_epoch(self) -> SweptEpoch:
        """Train for an epoch, and evaluate."""
        if self._is_waiting:
            self._is_waiting = False
            return SweptEpoch(shares={self._limit_w: 1.0}, is_profiling=False)
        steps: Counter[float] = Counter()
        is_profiling = False
        for step in range(self._steps):
            self._take(begin_step(self._state))
            if self.is_done:
                steps[self.best_w] += self._steps - step
                break
            steps[self._limit_w] += 1
            is_profiling |= self._state.is_under_test
        self._take(end_epoch(self._state, is_step_complete=True))
        shares = {limit_w: number / self._steps for limit_w, number in steps.items()}
        return SweptEpoch(shares=shares, is_profiling=is_profiling)

    def _take(self, step: Step) -> None:
        self._state, todo = step
        for action in todo:
            match action:
                case SetLimit():
                    self._limit_w = action.limit_w
                case CloseWindow():
                    self.measured.append(self._by_limit[action.limit_w])


def steps_per_epoch(batch_size: int, samples: int) -> int:
    """The batches that cover the samples, the last one as far as there are any."""
    return math.ceil(samples / batch_size)
