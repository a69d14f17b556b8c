"""Exploration with pruning, as in the Zeus paper (NSDI '23, section 4.4).

For some rounds: from the default batch size downwards until one fails, then upwards until one fails. Those that
converged survive, the cheapest of them is the next round's default.
"""

from __future__ import annotations

from collections.abc import Iterable

from bso.domain.frozen_values import replace
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import PruningState, RoundVerdict


def candidates(state: PruningState, spec: JobSpec, feasible: frozenset[int]) -> tuple[int, ...]:
    """The batch sizes that the stage has not pruned, ascending; if none of them is feasible, all feasible ones."""
    left = tuple(size for size in spec.batch_sizes if size not in state.pruned)
    return left if feasible.intersection(left) else tuple(sorted(feasible))


def round_default(state: PruningState, spec: JobSpec, sizes: tuple[int, ...]) -> int:
    """The one of these batch sizes that the round begins with: its default, or the nearest one."""
    return nearest(spec.default_batch_size if state.round_number == 1 else state.default_batch_size, sizes)


def nearest(wanted: int, sizes: Iterable[int]) -> int:
    """The batch size itself if it is among them, else the nearest smaller, else the nearest larger one."""
    ordered = sorted(sizes)
    not_larger = [size for size in ordered if size <= wanted]
    return not_larger[-1] if not_larger else ordered[0]


def next_to_explore(state: PruningState, spec: JobSpec, feasible: frozenset[int]) -> int | None:
    """The batch size whose verdict the round waits for; None when the round is over.

    An infeasible one does not end the downward pass: what is too large says nothing about smaller ones.
    """
    sizes = candidates(state, spec, feasible)
    default = round_default(state, spec, sizes)
    verdicts = {size: _verdict(state, size, feasible) for size in sizes}
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


def with_result(
    state: PruningState, batch_size: int, *, has_converged: bool, is_infeasible: bool, cost: float | None
) -> PruningState:
    """The state after a final result: the first one is the verdict, later ones only add their costs."""
    verdict = state.verdicts.get(batch_size)
    if verdict is None:
        verdict = RoundVerdict(has_converged=has_converged, is_infeasible=is_infeasible)
    if cost is not None:
        verdict = replace(verdict, costs=verdict.costs.add(cost))
    return replace(state, verdicts={**state.verdicts, batch_size: verdict})


def _verdict(state: PruningState, batch_size: int, feasible: frozenset[int]) -> RoundVerdict | None:
    verdict = state.verdicts.get(batch_size)
    if verdict is None and batch_size not in feasible:
        return RoundVerdict(has_converged=False, is_infeasible=True)
    return verdict
