"""What one version of a job has learnt on one hardware kind: costs, failures, and what its policy remembers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bso.domain.frozen_values import remembered, replace
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import JobSpec
from bso.domain.statistics import CostStatistics, statistics_of

INTERRUPTIONS_BEFORE_REST = 3
OUT_OF_MEMORY_FOR_GOOD = 2
NOT_CONVERGED_BEFORE_EXCLUSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRecord:
    """What is known of one batch size. Costs and convergences count since the last change point.

    ``interrupted_after_s`` is 0 where an exception of the training's own was the reason.
    ``not_converged_in_a_row`` also counts being infeasible for another reason than memory; a convergence ends the
    row, or a change point.
    """

    costs: CostStatistics = CostStatistics()
    convergences: int = 0
    cheapest_converged: float | None = None
    not_converged_in_a_row: int = 0
    interrupted_after_s: tuple[float, ...] = ()
    is_resting: bool = False
    out_of_memories: int = 0
    exceeds_wall_time: bool = False

    @property
    def still_converges(self) -> bool:
        """Whether it may be sampled: false after failing to converge in two consecutive trials."""
        return self.not_converged_in_a_row < NOT_CONVERGED_BEFORE_EXCLUSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One ended trial of the window. ``cost`` is None where none was learnt."""

    batch_size: int
    cost: float | None
    has_converged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """All that was learnt on one hardware kind. ``memories`` holds what each policy remembers of it, by its name.

    ``recurrences_without_model`` counts those in a row that ended here with no attempt left; see attention.
    ``is_inherited``: no trial has ended here yet, and all that is known is another version's, or another job's.
    """

    hardware: HardwareKind
    arms: Mapping[int, ArmRecord] = field(default_factory=dict)
    window: tuple[Observation, ...] = ()
    recurrences_without_model: int = 0
    needs_attention: bool = False
    change_points: int = 0
    is_inherited: bool = False
    memories: Mapping[str, Any] = field(default_factory=dict)

    def arm(self, batch_size: int) -> ArmRecord:
        """What is known of a batch size; an empty record if nothing is."""
        return self.arms.get(batch_size, _NOTHING)

    def with_memory(self, policy: str, memory: object) -> Knowledge:
        """The knowledge with what a policy remembers replaced."""
        return replace(self, memories={**self.memories, policy: memory})


_NOTHING = ArmRecord()


@remembered  # every report asks for it, and only the end of a trial changes it
def reference_of(knowledge: Knowledge, spec: JobSpec, excluded: frozenset[int]) -> float | None:
    """The cheapest converged cost [J] in the window, the base of early stopping; None before any.

    That of a batch size that cannot be had any more (removed, infeasible, no longer converging, ``excluded`` by the
    policy) would stop all others for ever: it counts only while no better one has converged.
    """
    sizes = {seen.batch_size for seen in knowledge.window} if spec.window_size else knowledge.arms
    costs = {size: cost for size in sizes if (cost := cheapest_of(knowledge, spec, size)) is not None}
    if not costs:
        return None
    usable = feasible(knowledge, spec)
    converging = [size for size in costs if size in usable and knowledge.arm(size).still_converges]
    sampled = [size for size in converging if size not in excluded]
    return min(costs[size] for size in sampled or converging or costs)


def cheapest_of(knowledge: Knowledge, spec: JobSpec, batch_size: int) -> float | None:
    """The cheapest converged cost [J] of one batch size in the window; None before any."""
    if not spec.window_size:
        return knowledge.arm(batch_size).cheapest_converged
    seen = [one for one in knowledge.window if one.batch_size == batch_size and one.has_converged]
    return min((one.cost for one in seen if one.cost is not None), default=None)


def costs_of(knowledge: Knowledge, spec: JobSpec, batch_size: int) -> CostStatistics:
    """The costs of one batch size in the window, censored ones included."""
    if not spec.window_size:
        return knowledge.arm(batch_size).costs
    return statistics_of(
        seen.cost for seen in knowledge.window if seen.batch_size == batch_size and seen.cost is not None
    )


def cheapest_known(knowledge: Knowledge, spec: JobSpec, among: frozenset[int]) -> int | None:
    """The batch size of the lowest mean cost among those that have converged; None if none of them has."""
    costs = {size: costs_of(knowledge, spec, size) for size in sorted(among) if knowledge.arm(size).convergences}
    known = [size for size, statistics in costs.items() if statistics.count]
    return min(known, key=lambda size: (costs[size].mean, size), default=None)


def too_large_from(knowledge: Knowledge) -> int | None:
    """The smallest batch size that ran out of memory for good; it and larger ones are infeasible."""
    sizes = [size for size, arm in knowledge.arms.items() if arm.out_of_memories >= OUT_OF_MEMORY_FOR_GOOD]
    return min(sizes, default=None)


def feasible(knowledge: Knowledge, spec: JobSpec) -> frozenset[int]:
    """The batch sizes that can run on this hardware kind, as far as is known; never empty.

    Wall time never makes a job infeasible, and a job whose every batch size ran out of memory is left its
    smallest one: an answer is worth more to a training run than an error.
    """
    ceiling = too_large_from(knowledge)
    fitting = frozenset(spec.batch_sizes if ceiling is None else [size for size in spec.batch_sizes if size < ceiling])
    if not fitting:
        return frozenset({spec.batch_sizes[0]})
    too_slow = [size for size, arm in knowledge.arms.items() if arm.exceeds_wall_time]
    return fitting.difference(too_slow) or fitting


def is_of_the_job(knowledge: Knowledge, spec: JobSpec, batch_size: int) -> bool:
    """Whether the job has or had a batch size; a client that did not reach the optimizer may have chosen another."""
    return batch_size in spec.batch_sizes or batch_size in knowledge.arms


def nearest(wanted: int, sizes: Iterable[int]) -> int:
    """The batch size itself if it is among them, else the nearest smaller, else the nearest larger one."""
    ordered = sorted(sizes)
    not_larger = [size for size in ordered if size <= wanted]
    return not_larger[-1] if not_larger else ordered[0]
