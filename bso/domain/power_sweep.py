"""The sweep over power limits while a training trains: which limit at which step. What a sample costs under a limit.

WAITING --steps--> WARMING_UP --steps--> MEASURING --steps--> WARMING_UP of the next lower limit ... --> DONE
   ^                   |                     |
   +----- the epoch ends: the same limit again, from the next epoch's first step
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

from bso.domain.commands import PowerMeasurement
from bso.domain.progress import cost_of

_MUCH_MORE = 1.2


class ProfilingPhase(Enum):
    """Where the profiling of the current limit stands."""

    WAITING = "waiting"  # the limit is not set yet: the first steps of a training, or between two epochs
    WARMING_UP = "warming_up"  # the limit is set; its effect settles
    MEASURING = "measuring"  # a window is open
    DONE = "done"  # every limit has had its window


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The limits [W] to profile, highest first, and how many training steps to give to what.

    ``resting_w`` is the limit while none is tested: before the first one, and between epochs; None: the highest.
    """

    limits_w: tuple[float, ...]
    resting_w: float | None = None
    wait_steps: int = 1
    warmup_steps: int = 10
    profile_steps: int = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLimit:
    """To do: set this limit [W]."""

    limit_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWindow:
    """To do: begin to measure time and energy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseWindow:
    """To do: end the window; it is the measurement of this limit [W] over this many steps."""

    limit_w: float
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropWindow:
    """To do: end the window without making anything of it."""


Action = SetLimit | OpenWindow | CloseWindow | DropWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiling:
    """How far the profiling has come. ``steps_left``: steps that may still begin in this phase."""

    plan: Plan
    phase: ProfilingPhase
    position: int = 0
    steps_left: int = 0
    steps_at_limit: int = 0  # steps that began under this limit in this epoch
    has_whole_epoch: bool = False  # this limit was set at the first step of this epoch

    @property
    def limit_w(self) -> float:
        """The limit [W] under test, or the one that is next."""
        return self.plan.limits_w[min(self.position, len(self.plan.limits_w) - 1)]

    @property
    def resting_w(self) -> float:
        """The limit [W] while none is tested."""
        return self.plan.limits_w[0] if self.plan.resting_w is None else self.plan.resting_w

    @property
    def is_done(self) -> bool:
        """Whether every limit has had its window."""
        return self.phase is ProfilingPhase.DONE

    @property
    def is_under_test(self) -> bool:
        """Whether a limit is set for the sake of measuring it."""
        return self.phase in (ProfilingPhase.WARMING_UP, ProfilingPhase.MEASURING)


Step = tuple[Profiling, tuple[Action, ...]]


def begin_profiling(plan: Plan) -> Profiling:
    """Before the first step."""
    return Profiling(plan=plan, phase=ProfilingPhase.WAITING, steps_left=plan.wait_steps)


def begin_step(state: Profiling) -> Step:
    """A training step begins. What is to be done comes before it."""
    todo: tuple[Action, ...] = ()
    while not state.is_done and state.steps_left == 0:
        state, more = _next_phase(state)
        todo += more
    if state.is_done:
        return state, todo
    at_limit = state.steps_at_limit + 1 if state.is_under_test else 0
    return replace(state, steps_left=state.steps_left - 1, steps_at_limit=at_limit), todo


def end_epoch(state: Profiling, *, is_step_complete: bool) -> Step:
    """An epoch ends: a window that has all its steps is closed, any other dropped; the limit goes on in the next epoch.

    ``is_step_complete``: the last step that began has ended, too. Evaluation then runs under the resting limit.
    """
    todo: tuple[Action, ...] = ()
    if state.phase is ProfilingPhase.MEASURING and state.steps_left == 0 and is_step_complete:
        state, todo = _next_phase(state)
    if state.is_done or state.phase is ProfilingPhase.WAITING:
        return state, todo
    if state.phase is ProfilingPhase.MEASURING:
        todo += (DropWindow(),)
    resting = SetLimit(limit_w=state.resting_w)
    fitting = _fitting(state, usable_steps=state.steps_at_limit - (not is_step_complete))
    return _waiting(replace(state, plan=fitting)), (*todo, resting)


def resume_at(state: Profiling, *, position: int, plan: Plan) -> Profiling:
    """Between epochs, go on at another limit, or with fewer steps: what all ranks have agreed on."""
    if position >= len(plan.limits_w):
        return replace(state, plan=plan, position=position, phase=ProfilingPhase.DONE, steps_left=0)
    return _waiting(replace(state, plan=plan, position=position))


def limits_between(highest_w: float, lowest_w: float, *, step_w: float) -> tuple[float, ...]:
    """From the highest limit [W] down by ``step_w``; the lowest is always among them."""
    count = math.ceil((highest_w - lowest_w) / step_w)
    return (*(highest_w - step * step_w for step in range(count)), lowest_w)


def is_low_enough(measured: Sequence[PowerMeasurement]) -> bool:
    """Whether lower limits than these need not be measured: a sample would only take more of both time and energy.

    So it is where it takes more of both under two limits in a row than under some higher one, and under the second a
    fifth more. A single limit that looks like that may have been measured while something else held the training up.
    """
    falling = sorted(measured, key=lambda one: -one.power_limit_w)
    return any(
        _takes_more(one, falling[:place], factor=1.0) and _takes_more(lower, falling[:place], factor=_MUCH_MORE)
        for place, (one, lower) in enumerate(pairwise(falling))
    )


def _takes_more(one: PowerMeasurement, higher: Sequence[PowerMeasurement], *, factor: float) -> bool:
    """Whether a sample takes so many times the time and the energy that it takes under one of the higher limits."""
    return any(
        other.samples_per_s > factor * one.samples_per_s
        and one.average_power_w / one.samples_per_s > factor * other.average_power_w / other.samples_per_s
        for other in higher
    )


def cost_of_sample(measured: PowerMeasurement, *, eta_knob: float, max_power_w: float) -> float:
    """What a sample costs [J] under a limit: (eta * average power + (1 - eta) * max power) / throughput."""
    time_s = 1.0 / measured.samples_per_s
    return cost_of(
        energy_j=measured.average_power_w * time_s, time_s=time_s, eta_knob=eta_knob, max_power_w=max_power_w
    )


def _next_phase(state: Profiling) -> Step:
    if state.phase is ProfilingPhase.WAITING:
        set_limit = SetLimit(limit_w=state.limit_w)
        return replace(state, phase=ProfilingPhase.WARMING_UP, steps_left=state.plan.warmup_steps), (set_limit,)
    if state.phase is ProfilingPhase.WARMING_UP:
        return replace(state, phase=ProfilingPhase.MEASURING, steps_left=state.plan.profile_steps), (OpenWindow(),)
    close = CloseWindow(limit_w=state.limit_w, steps=state.plan.profile_steps)
    following = replace(state, position=state.position + 1, steps_at_limit=0, has_whole_epoch=False)
    if following.position == len(state.plan.limits_w):
        return replace(following, phase=ProfilingPhase.DONE, steps_left=0), (close,)
    set_limit = SetLimit(limit_w=following.limit_w)
    return replace(following, phase=ProfilingPhase.WARMING_UP, steps_left=state.plan.warmup_steps), (close, set_limit)


def _waiting(state: Profiling) -> Profiling:
    return replace(state, phase=ProfilingPhase.WAITING, steps_left=0, steps_at_limit=0, has_whole_epoch=True)


def _fitting(state: Profiling, *, usable_steps: int) -> Plan:
    """The plan, with fewer steps per limit if a whole epoch was too short for one: else it would never end."""
    plan = state.plan
    needed = plan.warmup_steps + plan.profile_steps
    if not state.has_whole_epoch or not 0 < usable_steps < needed:
        return plan
    warmup_steps = usable_steps * plan.warmup_steps // needed
    return replace(plan, warmup_steps=warmup_steps, profile_steps=usable_steps - warmup_steps)
