"""What the policy remembers on a hardware kind, its own events, and what events add: copying, no decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from bso.domain.events import BatchSizeAllowed, ChangePoint, LateResult, TrialEnded, TrialStarted
from bso.domain.frozen_values import replace
from bso.domain.job import Job
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import Knowledge, is_of_the_job, too_large_from
from bso.domain.statistics import CostStatistics
from bso.domain.trial import FAILURES, Outcome

NAME = "pruning_thompson"


class Stage(Enum):
    """The stages of the Zeus paper (NSDI '23, section 4)."""

    PRUNING = "Pruning"  # exploration: which batch sizes converge within the bound
    MAB = "MAB"  # multi-armed bandit over those that survived


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
    Trials up to ``began_after_trial`` began before the round.
    """

    stage: Stage
    default_batch_size: int
    round_number: int = 1
    verdicts: Mapping[int, RoundVerdict] = field(default_factory=dict)
    pruned: frozenset[int] = frozenset()
    paused_in: str | None = None
    began_after_trial: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnded:
    """A pruning round is over. No survivors: nothing converged within its bound; the exploration begins again later."""

    version_number: int
    hardware_key: str
    round_number: int
    survivors: tuple[int, ...]
    pruned: tuple[int, ...]
    next_default_batch_size: int
    recurrence_id: str

    @property
    def sentence(self) -> str:
        """What happened, for people."""
        ended = f"pruning round {self.round_number} ended"
        if not self.survivors:
            return f"{ended}: no batch size converged; it begins again in the next recurrence"
        converged = f"{_listed(self.survivors)} converged"
        if len(self.survivors) > 1:
            converged += f", {self.next_default_batch_size} at the least cost"
        left_out = _listed(self.pruned) if self.pruned else "none"
        return f"{ended}: {converged}; left out from now on: {left_out}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEntered:
    """The job went from one stage to the next."""

    version_number: int
    hardware_key: str
    stage: Stage
    batch_sizes: tuple[int, ...]

    @property
    def sentence(self) -> str:
        """What happened, for people."""
        sizes = "batch size" if len(self.batch_sizes) == 1 else "batch sizes"
        return f"the {self.stage.value} stage began with {sizes} {_listed(self.batch_sizes)}"


def state_on(knowledge: Knowledge, spec: JobSpec) -> PruningState:
    """Where the exploration stands on a hardware kind; at its beginning where nothing is remembered."""
    known: PruningState | None = knowledge.memories.get(NAME)
    if known is not None:
        return known
    return PruningState(
        stage=Stage.PRUNING if spec.num_pruning_rounds else Stage.MAB, default_batch_size=spec.default_batch_size
    )


def evolved(before: Job, after: Job, event: Any) -> Job:
    """The job after an event, with where the exploration stands now."""
    match event:
        case TrialStarted():
            trial = after.trials[event.trial_number]
            knowledge, number = after.knowledge_of(trial), trial.version_number
            return _with(after, number, knowledge, state_on(knowledge, after.spec_of(trial)))
        case TrialEnded() | LateResult():
            return _after_trial(before, after, event)
        case ChangePoint():
            return _changed(after, event, _explored_anew)
        case RoundEnded():
            return _changed(after, event, lambda state: _after_round(state, event, after.last_trial_number))
        case StageEntered():
            return _changed(after, event, lambda state: replace(state, stage=event.stage))
        case BatchSizeAllowed():
            return _after_allowing(before, after, event)
    return after


def _after_trial(before: Job, after: Job, event: TrialEnded | LateResult) -> Job:
    """The first final result of a batch size in a round is its verdict, later ones only add their costs."""
    trial = before.trials[event.trial_number]
    spec, knowledge = after.spec_of(trial), after.knowledge_of(trial)
    size, has_converged = trial.batch_size, event.outcome is Outcome.CONVERGED
    state = state_on(knowledge, spec)
    is_verdict = has_converged or event.outcome in FAILURES
    if not (state.stage is Stage.PRUNING and is_verdict and is_of_the_job(before.knowledge_of(trial), spec, size)):
        return after
    verdict = state.verdicts.get(size)
    if verdict is None:
        is_infeasible = event.outcome is Outcome.INFEASIBLE
        verdict = RoundVerdict(has_converged=has_converged and not event.is_failure, is_infeasible=is_infeasible)
    if event.learnt_cost is not None:
        verdict = replace(verdict, costs=verdict.costs.add(event.learnt_cost))
    state = replace(state, verdicts={**state.verdicts, size: verdict})
    return _with(after, trial.version_number, knowledge, state)


def _after_round(state: PruningState, event: RoundEnded, last_trial_number: int) -> PruningState:
    state = replace(state, verdicts={}, began_after_trial=last_trial_number)
    if not event.survivors:
        return replace(state, paused_in=event.recurrence_id)
    return replace(
        state,
        round_number=event.round_number + 1,
        default_batch_size=event.next_default_batch_size,
        pruned=state.pruned | set(event.pruned),
        paused_in=None,
    )


def _explored_anew(state: PruningState) -> PruningState:
    """The round begins again: what was pruned by the old reference, while still exploring, may be fine by the new."""
    state = replace(state, verdicts={}, paused_in=None)
    return replace(state, pruned=frozenset()) if state.stage is Stage.PRUNING else state


def _after_allowing(before: Job, after: Job, event: BatchSizeAllowed) -> Job:
    """Whatever fits proves that smaller ones do: those that are too large no longer, and the allowed one, come back."""
    number = after.current_version
    for key in event.hardware_keys:
        ceiling = too_large_from(before.version.knowledge[key])
        knowledge = after.version.knowledge[key]
        state = state_on(knowledge, after.spec)
        lifted = {size for size in state.pruned if ceiling is not None and ceiling <= size <= event.batch_size}
        verdicts = {
            size: verdict
            for size, verdict in state.verdicts.items()
            if not (size <= event.batch_size and verdict.is_infeasible)
        }
        pruned = state.pruned - lifted - {event.batch_size}
        after = _with(after, number, knowledge, replace(state, verdicts=verdicts, pruned=pruned))
    return after


def _changed(job: Job, event: ChangePoint | RoundEnded | StageEntered, change: Any) -> Job:
    version = job.versions[event.version_number]
    knowledge = version.knowledge[event.hardware_key]
    return _with(job, event.version_number, knowledge, change(state_on(knowledge, version.spec)))


def _with(job: Job, version_number: int, knowledge: Knowledge, state: PruningState) -> Job:
    return job.with_knowledge(version_number, knowledge.with_memory(NAME, state))


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))
