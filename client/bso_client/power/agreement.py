"""What ranks tell each other about power limits, so that all take the same ones at the same steps. Rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bso.domain.commands import PowerMeasurement
from bso_client.power.profiling import Plan, Profiling, resume_at
from bso_client.power.reduction import Window


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
    """What a rank tells the others."""
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
