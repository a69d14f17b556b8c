"""What the ranks of a training agree on: the limits that suit all GPUs, how far all have come, one profile. Rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bso.domain.commands import PowerMeasurement
from bso.domain.power_sweep import Profiling, is_low_enough, resume_at
from bso.domain.replies import NearestPowerProfile


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

    The limits [W] are of each GPU, ``max_power_w`` is of all GPUs of the rank; ``profile`` is what the rank knows of
    the batch size, ``nearest`` what it knows of the nearest other one.
    """

    problem: str = ""
    highest_w: float = 0.0
    lowest_w: float = 0.0
    max_power_w: float = 0.0
    profile: tuple[PowerMeasurement, ...] = ()
    nearest: NearestPowerProfile | None = None


def joint_opening(openings: Sequence[Opening]) -> Opening:
    """What all ranks may do together: one that cannot set limits keeps all from it; rank 0 knows the profiles."""
    for rank, opening in enumerate(openings):
        if opening.problem:
            whose = f"rank {rank}: " if len(openings) > 1 else ""
            return Opening(problem=f"{whose}{opening.problem}")
    highest_w, lowest_w = min(one.highest_w for one in openings), max(one.lowest_w for one in openings)
    if highest_w < lowest_w:
        return Opening(
            problem=f"no limit suits all GPUs: one takes at most {highest_w:g} W, one at least {lowest_w:g} W"
        )

    def settable(profile: Sequence[PowerMeasurement]) -> tuple[PowerMeasurement, ...]:
        return tuple(one for one in profile if lowest_w <= one.power_limit_w <= highest_w)

    nearest = openings[0].nearest
    of_nearest = () if nearest is None else settable(nearest.measurements)
    return Opening(
        highest_w=highest_w,
        lowest_w=lowest_w,
        max_power_w=sum(one.max_power_w for one in openings),
        profile=settable(openings[0].profile),
        nearest=replace(nearest, measurements=of_nearest) if nearest is not None and of_nearest else None,
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

    Epochs of ranks may differ by a step. The profile is done where lower limits than the measured ones are of no use.
    """
    plan = replace(
        state.plan,
        warmup_steps=min(stand.warmup_steps for stand in stands),
        profile_steps=min(stand.profile_steps for stand in stands),
    )
    position = min(len(stand.windows) for stand in stands)
    if is_low_enough(reduced([stand.windows for stand in stands])):
        position = len(plan.limits_w)
    return resume_at(state, position=position, plan=plan)


def _measurement(windows: Sequence[Window]) -> PowerMeasurement:
    time_s = max(window.time_s for window in windows)
    return PowerMeasurement(
        power_limit_w=windows[0].limit_w,
        average_power_w=sum(window.energy_j / window.time_s for window in windows),
        samples_per_s=sum(window.samples for window in windows) / time_s,
    )
