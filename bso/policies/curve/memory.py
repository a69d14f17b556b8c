"""What the policy remembers of a job, and what events add to it: copying and adding, no decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bso.domain.events import EpochCostsProbed, EpochReported, LateResult, StopWithdrawn, TrialEnded, TrialStarted
from bso.domain.frozen_values import replace
from bso.domain.hardware import HardwareKind
from bso.domain.job import Job, JobVersion
from bso.domain.knowledge import Knowledge
from bso.policies.curve.cost_records import EpochCostKnowledge, LearntEpochCost, Probe, with_learnt_cost
from bso.policies.curve.epoch_records import EpochKnowledge, LearntEpochs, with_learnt_epochs
from bso.policies.curve.validation import known_approach

NAME = "curve"
SECOND_LOOK = "second_look"
"""The mark of a trial that runs on up to its bound although it looks expensive, as some must."""
_NO_EPOCHS, _NO_COSTS = EpochKnowledge(), EpochCostKnowledge()


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncounted:
    """What a run cost whose epochs nobody counted, split by what is believed of them: ln epochs, and ln J of each.

    Only the sum of both was measured. ``variance``: it ended before its target, and how little its epochs say then;
    None: it converged.
    """

    ln_epochs: float
    ln_epoch_cost: float
    variance: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntCurve:
    """What is learnt from the end of a trial; a part is None where the trial says nothing of it."""

    epochs: LearntEpochs | None
    epoch_cost: LearntEpochCost | None
    uncounted: Uncounted | None = None


def epochs_of(version: JobVersion) -> EpochKnowledge:
    """What is remembered of epochs to the target, on whatever hardware."""
    known: EpochKnowledge = version.memories.get(NAME, _NO_EPOCHS)
    return known


def epoch_costs_on(knowledge: Knowledge) -> EpochCostKnowledge:
    """What is remembered of epoch costs on a hardware kind."""
    known: EpochCostKnowledge = knowledge.memories.get(NAME, _NO_COSTS)
    return known


def costs_elsewhere(version: JobVersion, hardware: HardwareKind) -> EpochCostKnowledge | None:
    """What is remembered of epoch costs on another hardware kind, the one of which most is; None: there is none."""
    own = hardware.key
    others = [epoch_costs_on(version.knowledge[key]) for key in sorted(version.knowledge) if key != own]
    known = [one for one in others if one.records]
    return max(known, key=lambda one: one.weight) if len(known) > 1 else next(iter(known), None)


def evolved(before: Job, after: Job, event: Any) -> Job:
    """The job after an event, with what is remembered of it."""
    match event:
        case EpochReported():
            return _with_approach(before, after, event)
        case TrialEnded() | LateResult():
            return _with_learnt(before, after, event)
        case TrialStarted() if event.mark == SECOND_LOOK:
            version = after.versions[event.version_number]
            epochs = epochs_of(version)
            looking = replace(epochs, second_looks=epochs.second_looks | {event.trial_number})
            return after.with_version(version.with_memory(NAME, looking))
        case EpochCostsProbed():
            return _with_probes(after, event)
        case StopWithdrawn():
            return _with_meanwhile(before, after, event.trial_number)
    return after


def _with_approach(before: Job, after: Job, event: EpochReported) -> Job:
    """A trial that reports may have come nearer to its target."""
    trial = before.trials[event.trial_number]
    if event.is_fill_in or trial.metric is None or not trial.is_active:
        return after
    version = after.versions[trial.version_number]
    spec, epochs = version.spec, epochs_of(version)
    known = known_approach(trial.trial_number, epochs.approaches)
    approach = known.after(
        spec.distance_to_target(trial.metric),
        spec.distance_to_target(event.metric),
        before=trial.epoch,
        now=event.epoch,
    )
    if approach is known:
        return after
    nearer = replace(epochs, approaches={**epochs.approaches, trial.trial_number: approach})
    return after.with_version(version.with_memory(NAME, nearer))


def _with_learnt(before: Job, after: Job, event: TrialEnded | LateResult) -> Job:
    trial = before.trials[event.trial_number]
    version = after.versions[trial.version_number]
    epochs, number = epochs_of(version), trial.trial_number
    learnt: LearntCurve | None = event.learnt.data if event.learnt and event.learnt.policy == NAME else None
    if learnt is None and not (number in epochs.second_looks or number in epochs.approaches):
        return after
    learnt = learnt or LearntCurve(epochs=None, epoch_cost=None)
    epochs = with_learnt_epochs(epochs, number, trial.batch_size, learnt.epochs)
    if learnt.uncounted is not None:
        ln_epochs, variance = learnt.uncounted.ln_epochs, learnt.uncounted.variance
        epochs = epochs.with_uncounted(trial.batch_size, ln_epochs, variance=variance)
    after = after.with_version(version.with_memory(NAME, epochs))
    knowledge = after.knowledge_of(trial)
    costs = with_learnt_cost(epoch_costs_on(knowledge), trial.batch_size, learnt.epoch_cost)
    if learnt.uncounted is not None:
        costs = costs.with_uncounted(trial.batch_size, learnt.uncounted.ln_epoch_cost)
    return after.with_knowledge(trial.version_number, knowledge.with_memory(NAME, costs))


def _with_probes(after: Job, event: EpochCostsProbed) -> Job:
    """What a trial has probed shares the factor of its run: its own batch size shows how far that is from earlier ones.

    So probes of several trials are on one level, as far as their own batch sizes were probed before.
    """
    knowledge = after.versions[event.version_number].knowledge[event.hardware_key]
    costs, own = epoch_costs_on(knowledge), event.batch_size
    values = {each.batch_size: each.ln_cost for each in event.probes}
    is_known = own in costs.probes and own in values
    shift = costs.probes[own].value - values[own] if is_known else 0.0
    found = {
        each.batch_size: Probe(value=each.ln_cost + shift, variance=each.variance)
        for each in event.probes
        if not (is_known and each.batch_size == own)
    }
    costs = replace(costs, probes={**costs.probes, **found})
    return after.with_knowledge(event.version_number, knowledge.with_memory(NAME, costs))


def _with_meanwhile(before: Job, after: Job, trial_number: int) -> Job:
    """What is known of running trials goes on when a stop is withdrawn, and what was of the one that was stopped.

    What was probed since the stop stays known, too, or it would be paid for again.
    """
    stop = before.unacknowledged_stops[trial_number]
    if stop.memories is None or stop.knowledge is None:
        return after
    version = after.versions[stop.version_number]
    now, then = epochs_of(before.versions[stop.version_number]), epochs_of(version)
    own = {trial_number: then.approaches[trial_number]} if trial_number in then.approaches else {}
    epochs = replace(then, second_looks=now.second_looks, approaches={**now.approaches, **own})
    after = after.with_version(version.with_memory(NAME, epochs))
    return _with_probes_of(before, after, stop.version_number, stop.knowledge.hardware.key)


def _with_probes_of(before: Job, after: Job, version_number: int, hardware_key: str) -> Job:
    probes = epoch_costs_on(before.versions[version_number].knowledge[hardware_key]).probes
    knowledge = after.versions[version_number].knowledge[hardware_key]
    costs = epoch_costs_on(knowledge)
    if costs.probes == probes:
        return after
    return after.with_knowledge(version_number, knowledge.with_memory(NAME, replace(costs, probes=probes)))
