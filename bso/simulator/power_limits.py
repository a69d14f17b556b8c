"""How trainings profile power limits: the steps under each, by the rules that the client's PowerLimitOptimizer obeys.

A batch size without a power profile starts at the best limit of the nearest one that has one. From its second step on
each limit has ten steps to warm up and forty that are measured, in one epoch or in several; the steps after the last
one are made under the best limit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bso.domain.power_sweep import Plan, SetLimit, Step, begin_profiling, begin_step, cost_of_sample, end_epoch
from bso.domain.replies import NearestPowerProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptEpoch:
    """One epoch: the share of its steps under each power limit [W], and whether one was set in order to measure it."""

    shares: Mapping[float, float]
    is_profiling: bool


class LimitSweep:
    """The power limits of one training, epoch by epoch. ``steps`` are those of an epoch, the limits are in W."""

    def __init__(self, limits_w: Collection[float], *, resting_w: float, best_w: float, steps: int) -> None:
        plan = Plan(limits_w=tuple(sorted(limits_w, reverse=True)), resting_w=resting_w)
        self._state = begin_profiling(plan)
        self._limit_w = resting_w
        self._best_w = best_w
        self._steps = steps

    @property
    def is_done(self) -> bool:
        """Whether every limit was measured."""
        return self._state.is_done

    def next_epoch(self) -> SweptEpoch:
        """Train for an epoch."""
        steps: Counter[float] = Counter()
        is_profiling = False
        for step in range(self._steps):
            self._take(begin_step(self._state))
            if self.is_done:
                steps[self._best_w] += self._steps - step
                break
            steps[self._limit_w] += 1
            is_profiling |= self._state.is_under_test
        self._take(end_epoch(self._state, is_step_complete=True))
        shares = {limit_w: number / self._steps for limit_w, number in steps.items()}
        return SweptEpoch(shares=shares, is_profiling=is_profiling)

    def _take(self, step: Step) -> None:
        self._state, todo = step
        for action in todo:
            if isinstance(action, SetLimit):
                self._limit_w = action.limit_w


def steps_per_epoch(batch_size: int, samples: int) -> int:
    """The batches that cover the samples, the last one as far as there are any."""
    return math.ceil(samples / batch_size)


def starting_limit_w(
    nearest: NearestPowerProfile | None, limits_w: Collection[float], *, eta_knob: float, max_power_w: float
) -> float:
    """The limit [W] at which a sample of the nearest batch size costs least; the highest if none is known."""
    known = [one for one in (nearest.measurements if nearest else ()) if one.power_limit_w in limits_w]
    if not known:
        return max(limits_w)
    costs = {one.power_limit_w: cost_of_sample(one, eta_knob=eta_knob, max_power_w=max_power_w) for one in known}
    return min(costs, key=lambda limit_w: (costs[limit_w], limit_w))
