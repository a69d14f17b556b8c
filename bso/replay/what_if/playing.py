"""Alternatives played: a job's life simulated with each of them, from its first recurrence, for many seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bso.domain.cost import cost_of
from bso.domain.job_spec import IDENTITY_FIELDS, SPEC_FIELDS
from bso.replay.what_if.alternatives import Alternative
from bso.replay.what_if.lasting import Tail
from bso.replay.what_if.recorded import End, Record
from bso.replay.what_if.worlds import step_of, world
from bso.simulator import simulate
from bso.simulator.process_pool import spread
from bso.simulator.simulation import PROBLEM_FIELDS

_OWN_LUCK = "mab_seed"  # every seed has its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a simulated life took in all; ``trials`` counts trainings by batch size."""

    time_s: float
    energy_j: float
    trials: Mapping[int, int]

    def cost(self, *, eta_knob: float, max_power_w: float) -> float:
        """Time and energy as one cost [J]."""
        return cost_of(energy_j=self.energy_j, time_s=self.time_s, eta_knob=eta_knob, max_power_w=max_power_w)


Lives = Mapping[Tail, Sequence[Played]]
"""The lives of an alternative, one for each seed in their order, with either assumption about long trainings."""


def play(
    record: Record,
    played: Sequence[Alternative],
    *,
    seeds: int,
    recurrences: int,
    processes: int = 1,
    on_done: Callable[[Played], None] = lambda _: None,
) -> tuple[Lives | None, ...]:
    """Play each alternative with each seed and each assumption; None for one of which nothing is known.

    The same seed draws the same trainings for all of them. Raises InvalidSimulation where a policy finds no model.
    """
    known = [one for one in played if one.unknown is None]
    results = iter(spread(_calls(record, known, seeds, recurrences), processes=processes, on_done=on_done))
    lives: list[Lives | None] = []
    for one in played:
        if one.unknown is not None:
            lives.append(None)
            continue
        own = {tail: [next(results) for _ in range(seeds)] for tail in _tails(record, one)}
        lives.append({tail: own.get(tail, own[Tail.SHORT]) for tail in Tail})
    return tuple(lives)


def lives_to_play(record: Record, played: Sequence[Alternative], *, seeds: int) -> int:
    """How many lives are simulated for an answer."""
    return seeds * sum(len(_tails(record, one)) for one in played if one.unknown is None)


def _calls(record: Record, known: Sequence[Alternative], seeds: int, recurrences: int) -> list[Callable[[], Played]]:
    if not known:
        return []
    sent = replace(record, paid=())  # to each process, with each call
    life = partial(_life, sent, recurrences=recurrences, step=step_of(record))
    return [
        partial(life, one, tail=tail, seed=seed)
        for one in known
        for tail in _tails(record, one)
        for seed in range(seeds)
    ]


def _tails(record: Record, one: Alternative) -> tuple[Tail, ...]:
    """The assumptions that differ: without a stopped training there is nothing to assume."""
    is_open = any(record.count(size, End.CENSORED) for size in one.batch_sizes)
    return tuple(Tail) if is_open else (Tail.SHORT,)


def _life(record: Record, one: Alternative, *, tail: Tail, seed: int, recurrences: int, step: float) -> Played:
    problem = world(record, one.batch_sizes, one.default_batch_size, seed=seed, tail=tail, step=step)
    run = simulate(problem, _knobs(one), recurrences=recurrences, seed=seed)
    return Played(
        time_s=sum(trial.time_s for trial in run.trials),
        energy_j=sum(trial.energy_j for trial in run.trials),
        trials=Counter(trial.batch_size for trial in run.trials),
    )


def _knobs(one: Alternative) -> dict[str, Any]:
    """The fields of the specification that the world does not set."""
    set_by_world = {*PROBLEM_FIELDS, _OWN_LUCK, *IDENTITY_FIELDS} - {"eta_knob"}
    return {name: getattr(one.spec, name) for name in SPEC_FIELDS if name not in set_by_world}
