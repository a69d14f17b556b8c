"""Exploration with pruning, as in the Zeus paper (NSDI '23, section 4.4).

For some rounds: from the default batch size downwards until one fails, then upwards until one fails. Those that
converged survive, the cheapest of them is the next round's default.
"""

from __future__ import annotations

from bso.domain.events import Event
from bso.domain.job import Job
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import feasible, nearest
from bso.domain.trial import Trial
from bso.policies.pruning_thompson.memory import (
    PruningState,
    RoundEnded,
    RoundVerdict,
    Stage,
    StageEntered,
    state_on,
)


def candidates(state: PruningState, spec: JobSpec, usable: frozenset[int]) -> tuple[int, ...]:
    """The batch sizes that the stage has not pruned, ascending; if none of them is feasible, all feasible ones."""
    left = tuple(size for size in spec.batch_sizes if size not in state.pruned)
    return left if usable.intersection(left) else tuple(sorted(usable))


def round_default(state: PruningState, spec: JobSpec, sizes: tuple[int, ...]) -> int:
    """The one of these batch sizes that the round begins with: its default, or the nearest one."""
    return nearest(spec.default_batch_size if state.round_number == 1 else state.default_batch_size, sizes)


def next_to_explore(state: PruningState, spec: JobSpec, usable: frozenset[int]) -> int | None:
    """The batch size whose verdict the round waits for; None when the round is over.

    An infeasible one does not end the downward pass: what is too large says nothing about smaller ones.
    """
    sizes = candidates(state, spec, usable)
    default = round_default(state, spec, sizes)
    verdicts = {size: _verdict(state, size, usable) for size in sizes}
    for size in reversed([size for size in sizes if size <= default]):
        verdict = verdicts[size]
        if verdict is None:
            return size
        if not verdict.has_converged and not verdict.is_infeasible:
            break
    for size in (size for size in sizes if size > default):
        verdict = verdicts[size]
        if verdict is None:
            return size
        if not verdict.has_converged:
            break
    return None


def survivors(state: PruningState, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Those of the batch sizes that converged within the bound in this round."""
    return tuple(size for size in sizes if (verdict := state.verdicts.get(size)) is not None and verdict.has_converged)


def cheapest_of_round(state: PruningState, surviving: tuple[int, ...], default: int) -> int:
    """The survivor of the lowest mean cost in this round; the default if no cost was learnt."""
    known = {size: costs for size in surviving if (costs := state.verdicts[size].costs).count}
    return min(known, key=lambda size: (known[size].mean, size), default=default)


def end_of_round(job: Job, trial: Trial) -> tuple[Event, ...]:
    """The end of the round, and of the stage of pruning, if a trial's end was the last that it waited for."""
    spec, knowledge = job.spec_of(trial), job.knowledge_of(trial)
    usable, state = feasible(knowledge, spec), state_on(knowledge, spec)
    if state.stage is not Stage.PRUNING or next_to_explore(state, spec, usable) is not None:
        return ()
    ended = _round_ended(trial, spec, state, usable)
    if ended.survivors and ended.round_number >= spec.num_pruning_rounds:
        return (ended, _stage_entered(trial, ended.survivors))
    return (ended,)


def _round_ended(trial: Trial, spec: JobSpec, state: PruningState, usable: frozenset[int]) -> RoundEnded:
    sizes = candidates(state, spec, usable)
    surviving = survivors(state, sizes)
    default = round_default(state, spec, sizes)
    return RoundEnded(
        version_number=trial.version_number,
        hardware_key=trial.hardware.key,
        round_number=state.round_number,
        survivors=surviving,
        pruned=tuple(size for size in sizes if size not in surviving) if surviving else (),
        next_default_batch_size=cheapest_of_round(state, surviving, default),
        recurrence_id=trial.recurrence_id,
    )


def _stage_entered(trial: Trial, surviving: tuple[int, ...]) -> StageEntered:
    return StageEntered(
        version_number=trial.version_number,
        hardware_key=trial.hardware.key,
        stage=Stage.MAB,
        batch_sizes=surviving,
    )


def _verdict(state: PruningState, batch_size: int, usable: frozenset[int]) -> RoundVerdict | None:
    verdict = state.verdicts.get(batch_size)
    if verdict is None and batch_size not in usable:
        return RoundVerdict(has_converged=False, is_infeasible=True)
    return verdict
