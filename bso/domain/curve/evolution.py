"""What events add to the curve policy's memory: copying and adding, no decisions."""

from __future__ import annotations

from bso.domain.curve.cost_records import with_learnt_cost
from bso.domain.curve.records import LearntCurve, with_learnt_epochs
from bso.domain.events import EpochReported, TrialStarted
from bso.domain.frozen_values import replace
from bso.domain.job import Job
from bso.domain.job_spec import CURVE
from bso.domain.trial import Trial


def with_second_look(job: Job, started: TrialStarted) -> Job:
    """The job with a trial that the policy lets run although it looks expensive."""
    version = job.versions[started.version_number]
    looking = replace(version.epochs, second_looks=version.epochs.second_looks | {started.trial_number})
    return job.with_version(replace(version, epochs=looking))


def with_approach(job: Job, trial: Trial, reported: EpochReported) -> Job:
    """The job after a report of a trial, which may have come nearer to its target; ``trial`` is it before that."""
    version = job.versions[trial.version_number]
    spec = version.spec
    if spec.policy != CURVE or trial.metric is None or not trial.is_active:
        return job
    known = version.epochs.approach(trial.trial_number)
    approach = known.after(
        spec.distance_to_target(trial.metric),
        spec.distance_to_target(reported.metric),
        before=trial.epoch,
        now=reported.epoch,
    )
    if approach is known:
        return job
    return job.with_version(replace(version, epochs=version.epochs.with_approach(trial.trial_number, approach)))


def with_learnt_curve(job: Job, trial: Trial, learnt: LearntCurve | None) -> Job:
    """The job with what the curve policy has learnt from a trial's end."""
    version = job.versions[trial.version_number]
    is_known = trial.trial_number in version.epochs.second_looks or trial.trial_number in version.epochs.approaches
    if learnt is None and not is_known:
        return job
    learnt = learnt or LearntCurve(epochs=None, epoch_cost=None)
    epochs = with_learnt_epochs(version.epochs, trial.trial_number, trial.batch_size, learnt.epochs)
    job = job.with_version(replace(version, epochs=epochs))
    knowledge = job.knowledge_of(trial)
    costs = with_learnt_cost(knowledge.epoch_costs, trial.batch_size, learnt.epoch_cost)
    return job.with_knowledge(trial.version_number, replace(knowledge, epoch_costs=costs))
