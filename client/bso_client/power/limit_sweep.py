"""The sweep over power limits while a training trains: which limit at which step, on all ranks. Rules.

WAITING --steps--> WARMING_UP --steps--> MEASURING --steps--> WARMING_UP of the next lower limit ... --> DONE
   ^                   |                     |
   +----- the epoch ends: the same limit again, from the next epoch's first step
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from bso.domain.commands import PowerMeasurement


class ProfilingPhase(Enum):
    """Where the profiling of the current limit stands."""

    WAITING = "waiting"  # the limit is not set yet: the first steps of a training, or between two epochs
    WARMING_UP = "warming_up"  # the limit is set; its effect settles
    MEASURING = "measuring"  # a window is open
    DONE = "done"  # every limit has had its window


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The limits [W] to profile, highest first, and how many training steps to give to what."""

    limits_w: tuple[float, ...]
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

    ``is_step_complete``: the last step that began has ended, too. Evaluation then runs under the highest limit.
    """
    todo: tuple[Action, ...] = ()
    if state.phase is ProfilingPhase.MEASURING and state.steps_left == 0 and is_step_complete:
        state, todo = _next_phase(state)
    if state.is_done or state.phase is ProfilingPhase.WAITING:
        return state, todo
    if state.phase is ProfilingPhase.MEASURING:
        todo += (DropWindow(),)
    highest = SetLimit(limit_w=state.plan.limits_w[0])
    fitting = _fitting(state, usable_steps=state.steps_at_limit - (not is_step_complete))
    return _waiting(replace(state, plan=fitting)), (*todo, highest)


def resume_at(state: Profiling, *, position: int, plan: Plan) -> Profiling:
    """Between epochs, go on at another limit, or with fewer steps: what all ranks have agreed on."""
    if position >= len(plan.limits_w):
        return replace(state, plan=plan, position=position, phase=ProfilingPhase.DONE, steps_left=0)
    return _waiting(replace(state, plan=plan, position=position))


def limits_between(highest_w: float, lowest_w: float, *, step_w: float) -> tuple[float, ...]:
    """From the highest limit [W] down by ``step_w``; the lowest is always among them."""
    count = math.ceil((highest_w - lowest_w) / step_w)
    return (*(highest_w - step * step_w for step in range(count)), lowest_w)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one rank measured under one limit of each of its GPUs [W]; its GPUs' energy [J] together, and time [s].

    ``samples`` are those that this rank trained on. ``is_valid``: the limit was set, and the meter measured something.
    """

    limit_w: float
    time_s: float
    energy_j: float
    samples: float
    is_valid: bool = True

    @property
    def is_known(self) -> bool:
        """Whether power and throughput follow from it. A meter that is too slow for the window measures 0 J."""
        numbers = (self.time_s, self.energy_j, self.samples)
        return self.is_valid and all(math.isfinite(number) and number > 0 for number in numbers)


def reduced(windows_by_rank: Sequence[Sequence[Window]]) -> tuple[PowerMeasurement, ...]:
    """One measurement per limit that every rank measured: power is summed, and the slowest rank's time counts.

    Ranks train in step, so the throughput of all is all their samples over that time.
    """
    together = zip(*windows_by_rank, strict=False)  # ranks measure the same limits in the same order
    return tuple(_measurement(windows) for windows in together if all(window.is_known for window in windows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What one rank may do, before anything is set. ``problem``: why it cannot set limits; empty if it can.

    The limits [W] are of each GPU, ``max_power_w`` is of all GPUs of the rank; ``profile`` is what the rank knows.
    """

    problem: str = ""
    highest_w: float = 0.0
    lowest_w: float = 0.0
    max_power_w: float = 0.0
    profile: tuple[PowerMeasurement, ...] = ()


def joint_opening(openings: Sequence[Opening]) -> Opening:
    """What all ranks may do together: one that cannot set limits keeps all from it; rank 0 knows the profile."""
    for rank, opening in enumerate(openings):
        if opening.problem:
            whose = f"rank {rank}: " if len(openings) > 1 else ""
            return Opening(problem=f"{whose}{opening.problem}")
    highest_w, lowest_w = min(one.highest_w for one in openings), max(one.lowest_w for one in openings)
    if highest_w < lowest_w:
        return Opening(
            problem=f"no limit suits all GPUs: one takes at most {highest_w:g} W, one at least {lowest_w:g} W"
        )
    return Opening(
        highest_w=highest_w,
        lowest_w=lowest_w,
        max_power_w=sum(one.max_power_w for one in openings),
        profile=tuple(one for one in openings[0].profile if lowest_w <= one.power_limit_w <= highest_w),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """How far one rank has come: its windows, and the steps per limit that its epochs have room for."""

    windows: tuple[Window, ...]
    warmup_steps: int
    profile_steps: int


def stand_of(state: Profiling, windows: Sequence[Window]) -> Stand:
    """What a rank sends to the others."""
    return Stand(windows=tuple(windows), warmup_steps=state.plan.warmup_steps, profile_steps=state.plan.profile_steps)


def resume_together(state: Profiling, stands: Sequence[Stand]) -> Profiling:
    """Go on at the first limit that some rank has not measured, with as many steps as the shortest epoch has room for.

    Epochs of ranks may differ by a step.
    """
    plan = Plan(
        limits_w=state.plan.limits_w,
        wait_steps=state.plan.wait_steps,
        warmup_steps=min(stand.warmup_steps for stand in stands),
        profile_steps=min(stand.profile_steps for stand in stands),
    )
    return resume_at(state, position=min(len(stand.windows) for stand in stands), plan=plan)


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


def _measurement(windows: Sequence[Window]) -> PowerMeasurement:
    time_s = max(window.time_s for window in windows)
    return PowerMeasurement(
        power_limit_w=windows[0].limit_w,
        average_power_w=sum(window.energy_j / window.time_s for window in windows),
        samples_per_s=sum(window.samples for window in windows) / time_s,
    )
