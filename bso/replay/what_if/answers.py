"""Alternatives to a job as it is, played by the simulator in worlds of its own trainings, and what each costs.

Each seed has another world, drawn from the recorded trainings, and other luck, the same for all alternatives: what they
have in common cancels out in differences. An interval holds what 95 % of the simulated lives had.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean, quantiles
from typing import Any

from bso.domain.job_spec import IDENTITY_FIELDS, SPEC_FIELDS, JobSpec, resolve_spec
from bso.domain.policies import policy_named
from bso.replay.what_if.record import End, NotRecorded, Record
from bso.replay.what_if.world import cost_noise, world
from bso.simulator.problem import EpochPrice
from bso.simulator.process_pool import spread
from bso.simulator.run import Run
from bso.simulator.simulation import PROBLEM_FIELDS
from bso.simulator.study import Case, StudySettings, run_case

AS_IT_IS = "as it is"
_AS_RECORDED = ({*IDENTITY_FIELDS} - {"eta_knob"}) | {"max_epochs"}
_SET_BY_WORLD = {*PROBLEM_FIELDS, *_AS_RECORDED, "mab_seed"}  # every seed has luck of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A specification to be played with those of its batch sizes that are known."""

    name: str
    spec: JobSpec
    batch_sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean, and the interval that holds 95 % of single lives."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeTotals:
    """What a recurrence takes under an alternative: cost [J] by its own eta_knob, joules, seconds and trainings.

    ``more_cost`` [J] is what it costs more than under the job as it is, both by the alternative's eta_knob and with the
    same luck; None for that itself. ``more_cost_share`` is its share of that cost, None as well where that is nothing.
    ``energy_j`` is None where it was not measured. ``choices`` are shares of the trainings, by batch size.
    """

    alternative: Alternative
    cost_j: Estimate
    energy_j: Estimate | None
    time_s: Estimate
    trials: Estimate
    more_cost_j: Estimate | None
    more_cost_share: Estimate | None
    choices: Mapping[int, float]


def alternatives(
    record: Record,
    *,
    policies: Sequence[str] = (),
    eta_knobs: Sequence[float] = (),
    beta_knobs: Sequence[float | None] = (),
    changes: Mapping[str, Any] | None = None,
) -> tuple[Alternative, ...]:
    """The job as it is, and each combination of policies and knobs, with other ``changes`` of its specification.

    Raises InvalidSpec for a value that no job may have, PolicyMissing, NotRecorded for what the record cannot answer.
    """
    knobs = {"policy": policies, "eta_knob": eta_knobs, "beta_knob": beta_knobs}
    asked = {name: values for name, values in knobs.items() if values}
    specs = [resolve_spec(changes or {}, record.spec)]
    specs = [resolve_spec(dict(zip(asked, values, strict=True)), specs[0]) for values in product(*asked.values())]
    for spec in specs:
        policy_named(spec.policy)
    found = {spec: _alternative(record, spec) for spec in (record.spec, *specs)}
    return tuple(found.values())


def play(
    record: Record,
    compared: Sequence[Alternative],
    *,
    seeds: int,
    recurrences: int,
    processes: int | None = None,
    on_done: Callable[[Run], None] = lambda _: None,
) -> tuple[AlternativeTotals, ...]:
    """An answer for each alternative, the first being the job as it is, from one simulated life for each seed.

    Raises InvalidSimulation where a policy finds no model.
    """
    calls = [
        partial(run_case, Case(name=one.name, problem=problem), seed, _settings(record, one, recurrences))
        for one in compared
        for seed in range(seeds)
        for problem in [world(record, one.batch_sizes, one.spec.default_batch_size, seed=seed)]
    ]
    runs = spread(calls, processes=processes or os.cpu_count() or 1, on_done=on_done)
    lives = [runs[start : start + seeds] for start in range(0, len(runs), seeds)]
    return tuple(
        _answer(record, one, own, lives[0] if index else None)
        for index, (one, own) in enumerate(zip(compared, lives, strict=True))
    )


def _alternative(record: Record, spec: JobSpec) -> Alternative:
    fields = dict.fromkeys(("policy", *SPEC_FIELDS))  # the policy comes first in names
    changed = {name: value for name in fields if (value := getattr(spec, name)) != getattr(record.spec, name)}
    fixed = next((name for name in changed if name in _AS_RECORDED), None)
    if fixed is not None:
        raise NotRecorded(
            f"all recorded trainings had {fixed} {getattr(record.spec, fixed)}: nothing is known of another"
        )
    unknown = {size: why for size in spec.batch_sizes if (why := record.why_unknown(size)) is not None}
    known = tuple(size for size in spec.batch_sizes if size not in unknown)
    wanted = {*changed.get("batch_sizes", ()), changed.get("default_batch_size")} & unknown.keys()
    if wanted or not any(record.count(size, End.CONVERGED) for size in known):
        named = [size for size in unknown if size in wanted or (not wanted and record.count(size, End.CONVERGED))]
        reasons = "; ".join(f"batch size {size}: {unknown[size]}" for size in named)
        raise NotRecorded(f"nothing can be said: {reasons or 'no training has reached its target'}")
    if spec.eta_knob != 0.0 and not record.has_energy(known):
        raise NotRecorded(f"the energy of job {record.job_id} was not measured: only eta 0 can be answered")
    name = ", ".join(_in_words(*change) for change in changed.items()) or AS_IT_IS
    return Alternative(name=name, spec=spec, batch_sizes=known)


def _in_words(name: str, value: Any) -> str:
    if name == "beta_knob" and value is None:
        return "never stopped early"
    if isinstance(value, float):
        value = f"{value:g}" if float(f"{value:g}") == value else value  # no two values have one name
    words = name.removesuffix("_knob").replace("_", " ")
    return f"{words} {','.join(map(str, value)) if isinstance(value, tuple) else value}"


def _settings(record: Record, one: Alternative, recurrences: int) -> StudySettings:
    knobs = {name: getattr(one.spec, name) for name in SPEC_FIELDS if name not in _SET_BY_WORLD}
    return StudySettings(spec_overrides=knobs, recurrences=recurrences, noise=cost_noise(record))


def _answer(
    record: Record, one: Alternative, lives: Sequence[Run], as_it_is: Sequence[Run] | None
) -> AlternativeTotals:
    paid = [_a_recurrence(life) for life in lives]
    costs = _costs(paid, one.spec.eta_knob, record)
    more = share = None
    if as_it_is is not None:
        before = _costs([_a_recurrence(life) for life in as_it_is], one.spec.eta_knob, record)
        differences = [cost - other for cost, other in zip(costs, before, strict=True)]
        more = _estimate(differences)
        share = _estimate([each / fmean(before) for each in differences]) if any(before) else None
    tried = Counter(trial.batch_size for life in lives for trial in life.trials)
    return AlternativeTotals(
        alternative=one,
        cost_j=_estimate(costs),
        energy_j=_estimate([each.energy_j for each in paid]) if record.has_energy(one.batch_sizes) else None,
        time_s=_estimate([each.time_s for each in paid]),
        trials=_estimate([life.tries_per_recurrence for life in lives]),
        more_cost_j=more,
        more_cost_share=share,
        choices={size: tried[size] / tried.total() for size in one.batch_sizes},
    )


def _a_recurrence(life: Run) -> EpochPrice:
    """What a recurrence took in the mean of a life."""
    whole = EpochPrice(
        time_s=sum(trial.time_s for trial in life.trials), energy_j=sum(trial.energy_j for trial in life.trials)
    )
    return whole.scaled(1.0 / life.recurrences)


def _costs(paid: Sequence[EpochPrice], eta_knob: float, record: Record) -> list[float]:
    return [each.cost(eta_knob=eta_knob, max_power_w=record.hardware.max_power_w) for each in paid]


def _estimate(values: Sequence[float]) -> Estimate:
    """The mean, and from the 2.5th to the 97.5th percentile; of few values from the least to the greatest."""
    cuts = quantiles(values, n=40, method="inclusive")
    return Estimate(mean=fmean(values), low=cuts[0], high=cuts[-1])
