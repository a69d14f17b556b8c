"""What the paper's policy decides for a job, in the terms of the policy seam."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from bso.domain.events import ChangePoint, Event, LateResult, TrialEnded
from bso.domain.evolve import apply
from bso.domain.frozen_values import replace
from bso.domain.hardware import HardwareKind
from bso.domain.job import Job, JobVersion, Recurrence, awake, fitting
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import (
    NOT_CONVERGED_BEFORE_EXCLUSION,
    Knowledge,
    cheapest_known,
    cheapest_of,
    costs_of,
    feasible,
    nearest,
    reference_of,
)
from bso.domain.policy import ArmStatus, Choice, Expectation, Outlook, Policy, PolicyStage
from bso.domain.quantities import joules
from bso.domain.trial import Trial
from bso.policies.pruning_thompson.bandit import CostPosterior, posterior_of, sample_cheapest
from bso.policies.pruning_thompson.exploration import candidates, end_of_round, next_to_explore
from bso.policies.pruning_thompson.memory import (
    NAME,
    PruningState,
    RoundEnded,
    Stage,
    StageEntered,
    evolved,
    state_on,
)

_MOST_DOUBLINGS = 64
_NONE_PRUNED = frozenset[int]()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Situation:
    """What a choice depends on. ``arms`` may run as far as the job knows, ``offered`` also in this recurrence.

    ``running`` has the batch sizes of the running trials, ``explored`` those of them that began in this round: like
    Zeus' server, a round does not wait for trials that began before it.
    """

    spec: JobSpec
    seed: int
    trial_number: int
    knowledge: Knowledge
    state: PruningState
    recurrence: Recurrence
    feasible: frozenset[int]
    arms: frozenset[int]
    offered: frozenset[int]
    running: tuple[int, ...]
    explored: frozenset[int]


def posterior_on(knowledge: Knowledge, spec: JobSpec, batch_size: int) -> CostPosterior | None:
    """What is believed about the mean cost of a batch size; None before its first cost, if the prior is flat."""
    return posterior_of(
        costs_of(knowledge, spec, batch_size),
        prior_mean=spec.mab_prior_mean,
        prior_precision=spec.mab_prior_precision,
    )


class PruningThompson(Policy):
    """Explores with pruning, then samples; stops a trial at ``beta_knob`` times the cheapest converged cost."""

    name = NAME
    hardware_memory = PruningState
    events = (RoundEnded, StageEntered)
    about_costs = (
        "the mean cost that Thompson sampling believes in, ± one standard deviation. Trials that were stopped early "
        "count with their cost until then"
    )

    def choose(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> Choice:
        """The batch size for the next trial of a recurrence, of the job's current version."""
        now = _situation(job, recurrence, hardware)
        if recurrence.aborts and recurrence.is_on_last_attempt(now.spec):
            reason = (
                f"attempt {recurrence.aborts + 1} of {now.spec.max_attempts} is the last, without a bound on its cost"
            )
            return _known_or_default(now, reason, tolerated=0)
        return _explore(now) if now.state.stage is Stage.PRUNING else _sample(now)

    def bound(self, job: Job, trial: Trial) -> float | None:
        """The cost [J] above which a trial is stopped: ``beta * reference``; None: there is none.

        In the MAB stage a batch size that has converged before gets twice that for each abort of its recurrence, so
        that some trial always ends. While nothing has converged the cost budget, if there is one, is the bound. A
        trial that was running when its job came to need attention has none any more.
        """
        spec, knowledge = job.spec_of(trial), job.knowledge_of(trial)
        if not spec.early_stopping or knowledge.needs_attention:
            return None
        reference = reference_of(knowledge, spec, self.excluded(knowledge))
        if reference is None:
            return spec.cost_budget
        if spec.beta_knob is None:
            return None
        bound = spec.beta_knob * reference
        recurrence, stage = job.recurrences.get(trial.recurrence_id), state_on(knowledge, spec).stage
        if recurrence and stage is Stage.MAB and knowledge.arm(trial.batch_size).convergences:
            bound *= 2.0 ** min(recurrence.aborts, _MOST_DOUBLINGS)
        return bound if math.isfinite(bound) else None

    def learn(self, job: Job, trial: Trial, ended: TrialEnded | LateResult) -> tuple[Event, ...]:
        """Change point, the end itself, and the end of a round or stage: in this order."""
        change = _change_point(job, trial, ended)
        if change is None and _is_too_expensive(job, trial, ended):
            ended = replace(ended, is_failure=True)
        events: tuple[Event, ...] = (ended,) if change is None else (change, ended)
        return events + end_of_round(apply(job, events), trial)

    def outlook(self, version: JobVersion, knowledge: Knowledge) -> Outlook:
        """The posterior of each arm's mean cost; the best is the cheapest known one that may be offered."""
        spec = version.spec
        sizes = sorted({*spec.batch_sizes, *knowledge.arms})
        posteriors = {size: posterior_on(knowledge, spec, size) for size in sizes}
        usable = feasible(knowledge, spec)
        offerable = usable.intersection(candidates(state_on(knowledge, spec), spec, usable))
        return Outlook(
            best_batch_size=cheapest_known(knowledge, spec, frozenset(offerable)),
            expected={
                size: Expectation(cost=posterior.mean, deviation=posterior.std)
                for size, posterior in posteriors.items()
                if posterior is not None
            },
        )

    def evolve(self, before: Job, after: Job, event: Any) -> Job:
        """The job after an event, with where the exploration stands now."""
        return evolved(before, after, event)

    def excluded(self, knowledge: Knowledge) -> frozenset[int]:
        """What exploration has pruned."""
        state: PruningState | None = knowledge.memories.get(NAME)
        return _NONE_PRUNED if state is None else state.pruned

    def stage(self, version: JobVersion, knowledge: Knowledge) -> PolicyStage | None:
        """Pruning, with its round, or the bandit."""
        state = state_on(knowledge, version.spec)
        return PolicyStage(name=state.stage.value, round_number=state.round_number)

    def standing(self, version: JobVersion, knowledge: Knowledge, batch_size: int, *, is_running: bool) -> ArmStatus:
        """What exploration has found of a batch size, or is to find; then whether the bandit still samples it."""
        state = state_on(knowledge, version.spec)
        if batch_size in state.pruned:
            return ArmStatus(status="pruned", note="failed while exploring, or beyond one that failed")
        if state.stage is Stage.MAB:
            arm = knowledge.arm(batch_size)
            return ArmStatus(status="arm") if arm.still_converges else ArmStatus.excluded(arm.not_converged_in_a_row)
        verdict = state.verdicts.get(batch_size)
        if verdict is not None:
            return ArmStatus(status="survives" if verdict.has_converged else "failed")
        if next_to_explore(state, version.spec, feasible(knowledge, version.spec)) != batch_size:
            return ArmStatus(status="to explore")
        return ArmStatus(status="exploring" if is_running else "next")


def _situation(job: Job, recurrence: Recurrence, hardware: HardwareKind) -> _Situation:
    version = job.version
    knowledge = version.knowledge_on(hardware)
    usable = feasible(knowledge, version.spec)
    state = state_on(knowledge, version.spec)
    arms = usable.intersection(candidates(state, version.spec, usable))
    running = [each for each in job.running_trials(version.version_number) if each.hardware.key == hardware.key]
    return _Situation(
        spec=version.spec,
        seed=version.seed,
        trial_number=job.last_trial_number + 1,
        knowledge=knowledge,
        state=state,
        recurrence=recurrence,
        feasible=usable,
        arms=arms,
        offered=_offered(knowledge, version.spec, state.stage, recurrence, arms=arms),
        running=tuple(trial.batch_size for trial in running),
        explored=frozenset(trial.batch_size for trial in running if trial.trial_number > state.began_after_trial),
    )


def _offered(
    knowledge: Knowledge, spec: JobSpec, stage: Stage, recurrence: Recurrence, *, arms: frozenset[int]
) -> frozenset[int]:
    """The batch sizes that this recurrence may run: the best of these that is not empty.

    Arms that have not failed in it; those that only became too expensive (the exclusions lift); pruned ones, which
    is better than what no longer converges or fits; and, when nothing else is left, whatever there is.
    """
    fit = fitting(knowledge, spec, recurrence)
    fresh = fit - recurrence.failed
    sampled = stage is Stage.MAB
    converging = frozenset(size for size in fit if not sampled or knowledge.arm(size).still_converges)
    unfailing = frozenset(size for size in fit if not knowledge.arm(size).not_converged_in_a_row)
    preferences = (
        arms & fresh & converging,
        arms & unfailing,
        fresh & converging,
        arms & fresh,
        arms & fit,
        fresh,
    )
    has_room = recurrence.may_fit(min(fit), knowledge.hardware.key)
    return awake(knowledge, next(filter(None, preferences), arms if has_room else fit))


def _known_or_default(now: _Situation, why: str, *, tolerated: int = NOT_CONVERGED_BEFORE_EXCLUSION - 1) -> Choice:
    """The cheapest known batch size that may be offered; before any result the default or the nearest smaller.

    One that failed to converge more often in a row than ``tolerated`` yields to any other.
    """
    among = _safest(now, tolerated)
    known = cheapest_known(now.knowledge, now.spec, among)
    if known is not None:
        return Choice(batch_size=known, reason=f"{why}; {known} is the cheapest batch size known")
    default = now.spec.default_batch_size
    size = nearest(default, among)
    words = (
        f"{size} is the default"
        if size == default
        else f"of the batch sizes left, {size} is nearest to the default {default}"
    )
    return Choice(batch_size=size, reason=f"{why}; {words}")


def _safest(now: _Situation, tolerated: int) -> frozenset[int]:
    """Those offered that are most likely to give a model: not failing to converge, known, not failing in the round."""

    def doubts(size: int) -> tuple[bool, bool, bool]:
        arm, verdict = now.knowledge.arm(size), now.state.verdicts.get(size)
        has_failed = verdict is not None and not verdict.has_converged
        return arm.not_converged_in_a_row > tolerated, not arm.convergences, has_failed

    least = min(map(doubts, now.offered))
    return frozenset(size for size in now.offered if doubts(size) == least)


def _explore(now: _Situation) -> Choice:
    state = now.state
    if state.paused_in == now.recurrence.recurrence_id:
        return _known_or_default(now, "nothing converged in this round, the exploration begins again next time")
    size = next_to_explore(state, now.spec, now.feasible)
    if size is None or size not in now.offered:
        return _known_or_default(now, "the batch size under exploration cannot be offered at this time")
    if size in now.explored:
        return _known_or_default(now, f"batch size {size} is being explored by another trial")
    return Choice(batch_size=size, reason=f"exploring {size} in round {state.round_number} of the pruning stage")


def _sample(now: _Situation) -> Choice:
    arms = sorted(now.offered)
    wanted = max(2, now.spec.mab_num_explorations)
    looks = {size: costs_of(now.knowledge, now.spec, size).count + now.running.count(size) for size in arms}
    unexplored = [size for size in arms if costs_of(now.knowledge, now.spec, size).count < wanted]
    if unexplored:
        convergences = {size: now.knowledge.arm(size).convergences for size in arms}
        size = min(unexplored, key=lambda candidate: (looks[candidate], convergences[candidate], candidate))
        return Choice(batch_size=size, reason=f"{size} has fewer than {wanted} costs, which sampling needs")
    posteriors = {
        size: posterior for size in arms if (posterior := posterior_on(now.knowledge, now.spec, size)) is not None
    }
    size, sample = sample_cheapest(posteriors, seed=now.seed, trial_number=now.trial_number)
    mean = posteriors[size].mean
    if len(arms) == 1:
        return Choice(batch_size=size, reason=f"{size} is the only batch size left to choose (expected {joules(mean)})")
    return Choice(
        batch_size=size,
        reason=f"sampled cost {joules(sample)} of {size} is the lowest of {len(arms)} arms (expected {joules(mean)})",
    )


def _change_point(job: Job, trial: Trial, ended: TrialEnded | LateResult) -> ChangePoint | None:
    """Costs have risen if a batch size that used to be within the bound converges above it.

    One that never was is expensive now as ever. Unless another that used to be has just failed in the recurrence:
    then the reference is out of reach. In Pruning a bounded trial above its bound says only that its size is bad.
    """
    knowledge = job.knowledge_of(trial)
    spec = job.spec_of(trial)
    state = state_on(knowledge, spec)
    reference = reference_of(knowledge, spec, state.pruned)
    is_conclusive = state.stage is Stage.MAB or trial.is_unbounded
    if reference is None or spec.beta_knob is None or not (ended.is_over_bound and is_conclusive):
        return None
    recurrence = job.recurrences.get(trial.recurrence_id)
    failed = recurrence.failed if recurrence is not None else frozenset()
    own = cheapest_of(knowledge, spec, trial.batch_size)
    before = [cheapest_of(knowledge, spec, size) for size in {trial.batch_size, *failed}]
    if own is None or not any(cost is not None and cost <= spec.beta_knob * reference for cost in before):
        return None
    return ChangePoint(
        version_number=trial.version_number,
        hardware_key=trial.hardware.key,
        trial_number=trial.trial_number,
        cost=ended.cost,
        old_reference=reference,
    )


def _is_too_expensive(job: Job, trial: Trial, ended: TrialEnded | LateResult) -> bool:
    """Whether a trial has converged above the bound in Pruning, where that is a failure."""
    state = state_on(job.knowledge_of(trial), job.spec_of(trial))
    return ended.is_over_bound and state.stage is Stage.PRUNING
