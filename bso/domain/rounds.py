"""The end of a pruning round: who survives, and whether sampling begins (NSDI '23, section 4.4)."""

from __future__ import annotations

from bso.domain import pruning
from bso.domain.events import Event, RoundEnded, StageEntered
from bso.domain.job import Job
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import PruningState, Stage, feasible
from bso.domain.trial import Trial


def end_of_round(job: Job, trial: Trial) -> tuple[Event, ...]:
    """The end of the round, and of the stage of pruning, if a trial's end was the last that it waited for."""
    spec, knowledge = job.spec_of(trial), job.knowledge_of(trial)
    usable = feasible(knowledge, spec)
    if knowledge.stage is not Stage.PRUNING or pruning.next_to_explore(knowledge.pruning, spec, usable) is not None:
        return ()
    ended = _round_ended(trial, spec, knowledge.pruning, usable)
    if ended.survivors and ended.round_number >= spec.num_pruning_rounds:
        return (ended, _stage_entered(trial, ended.survivors))
    return (ended,)


def _round_ended(trial: Trial, spec: JobSpec, state: PruningState, usable: frozenset[int]) -> RoundEnded:
    sizes = pruning.candidates(state, spec, usable)
    surviving = pruning.survivors(state, sizes)
    default = pruning.round_default(state, spec, sizes)
    return RoundEnded(
        version_number=trial.version_number,
        hardware_key=trial.hardware.key,
        round_number=state.round_number,
        survivors=surviving,
        pruned=tuple(size for size in sizes if size not in surviving) if surviving else (),
        next_default_batch_size=pruning.cheapest_of_round(state, surviving, default),
        recurrence_id=trial.recurrence_id,
    )


def _stage_entered(trial: Trial, surviving: tuple[int, ...]) -> StageEntered:
    return StageEntered(
        version_number=trial.version_number,
        hardware_key=trial.hardware.key,
        stage=Stage.MAB,
        batch_sizes=surviving,
    )
