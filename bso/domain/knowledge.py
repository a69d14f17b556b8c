"""What one version of a job has learnt on one hardware kind: costs, failures, and where the policy stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from bso.domain.curve.cost_records import EpochCostKnowledge
from bso.domain.frozen_values import remembered
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import PRUNING_THOMPSON, JobSpec
from bso.domain.statistics import CostStatistics, statistics_of

INTERRUPTIONS_BEFORE_REST = 3
OUT_OF_MEMORY_FOR_GOOD = 2
NOT_CONVERGED_BEFORE_EXCLUSION = 2


class Stage(Enum):
    """The stages of the Zeus paper (NSDI '23, section 4)."""

    PRUNING = "Pruning"  # exploration: which batch sizes converge within the bound
    MAB = "MAB"  # multi-armed bandit over those that survived


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRecord:
    """What is known of one batch size. Costs and convergences count since the last change point.

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
class RoundVerdict:
    """The first final verdict of a batch size in a pruning round, and the costs that the round added to it."""

    has_converged: bool
    is_infeasible: bool = False
    costs: CostStatistics = CostStatistics()


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningState:
    """Where the exploration stands. ``default_batch_size`` is the round's; ``pruned`` stay out of the bandit, too.

    After a round in which nothing converged the exploration begins again, but not within the recurrence ``paused_in``.
    """

    default_batch_size: int
    round_number: int = 1
    verdicts: Mapping[int, RoundVerdict] = field(default_factory=dict)
    pruned: frozenset[int] = frozenset()
    paused_in: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """All that was learnt on one hardware kind. ``epoch_costs`` is the policy ``curve``'s.

    ``recurrences_without_model`` counts those in a row that ended here with no attempt left; see attention.
    """

    hardware: HardwareKind
    stage: Stage
    pruning: PruningState
    arms: Mapping[int, ArmRecord] = field(default_factory=dict)
    window: tuple[Observation, ...] = ()
    recurrences_without_model: int = 0
    needs_attention: bool = False
    change_points: int = 0
    epoch_costs: EpochCostKnowledge = EpochCostKnowledge()

    def arm(self, batch_size: int) -> ArmRecord:
        """What is known of a batch size; an empty record if nothing is."""
        return self.arms.get(batch_size, _NOTHING)


_NOTHING = ArmRecord()


def fresh_knowledge(spec: JobSpec, hardware: HardwareKind) -> Knowledge:
    """The knowledge before the first trial on a hardware kind."""
    return Knowledge(
        hardware=hardware,
        stage=Stage.PRUNING if spec.num_pruning_rounds and spec.policy == PRUNING_THOMPSON else Stage.MAB,
        pruning=PruningState(default_batch_size=spec.default_batch_size),
    )


@remembered  # every report asks for it, and only the end of a trial changes it
def reference_of(knowledge: Knowledge, spec: JobSpec) -> float | None:
    """The cheapest converged cost [J] in the window, the base of early stopping; None before any.

    That of a batch size that cannot be had any more (removed, infeasible, pruned, no longer converging) would stop
    all others for ever: it counts only while no better one has converged.
    """
    sizes = {seen.batch_size for seen in knowledge.window} if spec.window_size else knowledge.arms
    costs = {size: cost for size in sizes if (cost := cheapest_of(knowledge, spec, size)) is not None}
    if not costs:
        return None
    usable = feasible(knowledge, spec)
    converging = [size for size in costs if size in usable and knowledge.arm(size).still_converges]
    sampled = [size for size in converging if size not in knowledge.pruning.pruned]
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
