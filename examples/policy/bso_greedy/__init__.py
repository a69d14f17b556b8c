"""The policy ``greedy``: the batch size of the least mean cost, and now and then another one (epsilon-greedy)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bso.domain.events import Event, LateResult, PolicyData, TrialEnded
from bso.domain.evolve import evolve
from bso.domain.hardware import HardwareKind
from bso.domain.job import Job, JobVersion, Recurrence, available
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import Knowledge, feasible, nearest, reference_of
from bso.domain.policy import Choice, Expectation, Inherited, Outlook, Policy
from bso.domain.quantities import joules
from bso.domain.randomness import uniform
from bso.domain.statistics import CostStatistics
from bso.domain.trial import Outcome, Trial

NAME = "greedy"
EXPLORED = 0.1  # the share of recurrences that run another batch size than the cheapest one known


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What is remembered on one hardware kind: ``costs`` [J] of runs that converged, ``prior`` of another version."""

    costs: Mapping[int, CostStatistics] = field(default_factory=dict)
    prior: Mapping[int, float] = field(default_factory=dict)

    def of(self, batch_size: int) -> float | None:
        """The mean cost [J], the prior counting as one run; None: nothing is known."""
        costs, prior = self.costs.get(batch_size, CostStatistics()), self.prior.get(batch_size)
        if prior is not None:
            costs = costs.add(prior)
        return costs.mean if costs.count else None

    def cheapest(self, among: frozenset[int]) -> int | None:
        """The batch size of the least mean cost; None: none is known."""
        known = {size: mean for size in sorted(among) if (mean := self.of(size)) is not None}
        return min(known, key=lambda size: known[size], default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What is learnt from the end of a trial: its cost [J]."""

    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChanged:
    """Another batch size than before has the least mean cost."""

    version_number: int
    hardware_key: str
    batch_size: int

    @property
    def sentence(self) -> str:
        """What happened, for people."""
        return f"batch size {self.batch_size} has the least mean cost now"


class Greedy(Policy):
    """Runs what has cost least, and another batch size in one recurrence of ten."""

    name = NAME
    hardware_memory = Means
    learnt = Learnt
    events = (LeaderChanged,)
    about_costs = "the mean cost of all trials that converged"

    def choose(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> Choice:
        """The cheapest one known, or in one recurrence of ten the one that has run least."""
        version = job.version
        knowledge, spec = version.knowledge_on(hardware), version.spec
        offered = available(knowledge, spec, recurrence)
        means = means_on(knowledge)
        cheapest = means.cheapest(offered)
        if cheapest is None:
            size = nearest(spec.default_batch_size, offered)
            return Choice(batch_size=size, reason=f"nothing is known yet; {size} is near the default")
        if not recurrence.is_on_last_attempt(spec) and uniform(version.seed, job.last_trial_number + 1, 0) < EXPLORED:
            size = min(sorted(offered), key=lambda one: means.costs.get(one, CostStatistics()).count)
            return Choice(batch_size=size, reason=f"{size} has run least, and one run of ten explores")
        mean = means.of(cheapest) or 0.0
        return Choice(batch_size=cheapest, reason=f"{cheapest} has cost least ({joules(mean)})")

    def bound(self, job: Job, trial: Trial) -> float | None:
        """``beta_knob`` times the cheapest converged cost [J]; ``cost_budget`` before there is one."""
        spec, knowledge = job.spec_of(trial), job.knowledge_of(trial)
        if not spec.early_stopping:
            return None
        reference = reference_of(knowledge, spec, frozenset())
        if reference is None:
            return spec.cost_budget
        return None if spec.beta_knob is None else spec.beta_knob * reference

    def learn(self, job: Job, trial: Trial, ended: TrialEnded | LateResult) -> tuple[Event, ...]:
        """The end itself with its cost, and whether another batch size leads now."""
        if ended.outcome is Outcome.CONVERGED and ended.learnt_cost is not None:
            ended = replace(ended, learnt=PolicyData(policy=NAME, data=Learnt(cost=ended.learnt_cost)))
        among = frozenset(job.spec_of(trial).batch_sizes)
        before = means_on(job.knowledge_of(trial)).cheapest(among)
        after = means_on(evolve(job, ended).knowledge_of(trial)).cheapest(among)
        if after is None or after == before:
            return (ended,)
        changed = LeaderChanged(version_number=trial.version_number, hardware_key=trial.hardware.key, batch_size=after)
        return (ended, changed)

    def evolve(self, before: Job, after: Job, event: Any) -> Job:
        """The job with the cost of a trial that has ended added to what is remembered."""
        if not isinstance(event, TrialEnded | LateResult) or event.learnt is None or event.learnt.policy != NAME:
            return after
        trial = before.trials[event.trial_number]
        knowledge = after.knowledge_of(trial)
        means = means_on(knowledge)
        costs = means.costs.get(trial.batch_size, CostStatistics()).add(event.learnt.data.cost)
        means = replace(means, costs={**means.costs, trial.batch_size: costs})
        return after.with_knowledge(trial.version_number, knowledge.with_memory(NAME, means))

    def inherit(self, source: JobVersion, spec: JobSpec, *, is_sibling: bool) -> Inherited | None:
        """The mean costs, each as if it were that of one run."""
        known = {key: means_on(knowledge) for key, knowledge in source.knowledge.items()}
        priors = {
            key: Means(prior={size: mean for size in means.costs if (mean := means.of(size)) is not None})
            for key, means in known.items()
        }
        sizes = frozenset[int]().union(*(means.prior for means in priors.values()))
        return Inherited(on_hardware=priors, batch_sizes=sizes) if sizes else None

    def outlook(self, version: JobVersion, knowledge: Knowledge) -> Outlook:
        """The mean cost of each batch size, and its standard error."""
        means, usable = means_on(knowledge), feasible(knowledge, version.spec)
        expected = {
            size: Expectation(cost=mean, deviation=(costs.variance / costs.count) ** 0.5 if costs.count > 1 else mean)
            for size, costs in means.costs.items()
            if (mean := means.of(size)) is not None
        }
        return Outlook(best_batch_size=means.cheapest(usable), expected=expected)


def means_on(knowledge: Knowledge) -> Means:
    """What is remembered on a hardware kind."""
    known: Means = knowledge.memories.get(NAME, Means())
    return known


POLICY = Greedy()
