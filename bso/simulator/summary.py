"""What many simulations say: means over seeds for each case, and over all cases, with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bso.simulator.intervals import Bootstrap, MeanEstimate
from bso.simulator.problem import BatchSizeProblem
from bso.simulator.run import Run
from bso.simulator.study import CaseRuns

HORIZONS = (20, 50, 100)
FULL = "full"
"""The horizon of all recurrences, however many they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """By horizon (recurrences, as text, and "full"), and of whole runs. ``worst_run`` is the largest regret of one."""

    regret: Mapping[str, MeanEstimate]
    cost_over_oracle: Mapping[str, MeanEstimate]
    cost_over_default: Mapping[str, MeanEstimate]
    wrong_share: Mapping[str, MeanEstimate]
    last5_energy_over_default: MeanEstimate
    last5_time_over_default: MeanEstimate
    tries_per_recurrence: MeanEstimate
    worst_run: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSummary:
    """One case. ``oracle_batch_size`` is the best one at the end."""

    name: str
    problem: BatchSizeProblem
    recurrences: int
    oracle_batch_size: int
    measures: Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A whole study."""

    policy: str
    seeds: tuple[int, ...]
    problems: tuple[CaseSummary, ...]
    total: Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """One policy less another with the same luck, by horizon: negative where the first one is cheaper."""

    policy: str
    against: str
    regret: Mapping[str, MeanEstimate]
    cost_over_oracle: Mapping[str, MeanEstimate]


def summarize(results: Sequence[CaseRuns]) -> Summary:
    """Summarize a study of at least one case with at least one seed."""
    seeds = tuple(run.seed for run in results[0].runs)
    return Summary(
        policy=results[0].runs[0].policy,
        seeds=seeds,
        problems=tuple(_case(result) for result in results),
        total=_measures(results),
    )


def compare(results: Sequence[CaseRuns], others: Sequence[CaseRuns]) -> PairedDifference:
    """The difference over all cases of two studies of the same cases with the same seeds.

    It is taken run by run, so what both policies met alike cancels out. Raises ValueError for different studies.
    """
    for one, other in zip(results, others, strict=True):
        pairs = zip(one.runs, other.runs, strict=True)
        if one.case != other.case or any(mine.seed != yours.seed for mine, yours in pairs):
            raise ValueError(f"expected the same cases and seeds, got {one.case.name} and {other.case.name}")
    bootstrap, horizons = _bootstrap(results), _horizons(results)

    def less(quantity: Callable[[Run, int], float]) -> dict[str, MeanEstimate]:
        return {
            name: bootstrap.estimate(_at(results, horizon, quantity) - _at(others, horizon, quantity))
            for name, horizon in horizons.items()
        }

    return PairedDifference(
        policy=results[0].runs[0].policy,
        against=others[0].runs[0].policy,
        regret=less(Run.regret),
        cost_over_oracle=less(Run.cost_over_oracle),
    )


def _case(result: CaseRuns) -> CaseSummary:
    first = result.runs[0]
    return CaseSummary(
        name=result.case.name,
        problem=result.case.problem,
        recurrences=first.recurrences,
        oracle_batch_size=first.oracle.batch_sizes[-1],
        measures=_measures([result]),
    )


def _measures(results: Sequence[CaseRuns]) -> Measures:
    bootstrap, horizons = _bootstrap(results), _horizons(results)

    def of_runs(quantity: Callable[[Run], float]) -> MeanEstimate:
        return bootstrap.estimate(_table(results, quantity))

    def by_horizon(quantity: Callable[[Run, int], float]) -> dict[str, MeanEstimate]:
        return {name: bootstrap.estimate(_at(results, horizon, quantity)) for name, horizon in horizons.items()}

    return Measures(
        regret=by_horizon(Run.regret),
        cost_over_oracle=by_horizon(Run.cost_over_oracle),
        cost_over_default=by_horizon(Run.cost_over_default),
        wrong_share=by_horizon(Run.wrong_share),
        last5_energy_over_default=of_runs(lambda run: run.last_energy_over_default),
        last5_time_over_default=of_runs(lambda run: run.last_time_over_default),
        tries_per_recurrence=of_runs(lambda run: run.tries_per_recurrence),
        worst_run=max(run.regrets[-1] for result in results for run in result.runs),
    )


def _bootstrap(results: Sequence[CaseRuns]) -> Bootstrap:
    return Bootstrap([result.case.problem.workload for result in results], len(results[0].runs))


def _horizons(results: Sequence[CaseRuns]) -> dict[str, int | None]:
    """By name: so many recurrences, None being all."""
    longest = max(result.runs[0].recurrences for result in results)
    return {**{str(horizon): horizon for horizon in HORIZONS if horizon <= longest}, FULL: None}


def _at(results: Sequence[CaseRuns], horizon: int | None, quantity: Callable[[Run, int], float]) -> NDArray[np.float64]:
    """A quantity of every run at a horizon; NaN for runs that are shorter."""

    def of(run: Run) -> float:
        at = run.recurrences if horizon is None else horizon
        return quantity(run, at) if at <= run.recurrences else math.nan

    return _table(results, of)


def _table(results: Sequence[CaseRuns], quantity: Callable[[Run], float]) -> NDArray[np.float64]:
    """A quantity of every run, of shape (cases, seeds)."""
    return np.array([[quantity(run) for run in result.runs] for result in results], dtype=np.float64)
