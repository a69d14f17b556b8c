"""What a study is printed as: a table, JSON, and a CSV file with every trial."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bso.domain.foreign_text import csv_cell
from bso.domain.quantities import NOTHING, counted, more_or_less, percent
from bso_cli.tables import Table

if TYPE_CHECKING:
    from rich.console import Console

    from bso.simulator.intervals import MeanEstimate
    from bso.simulator.run import Run, SimulatedTrial
    from bso.simulator.study import CaseRuns
    from bso.simulator.summary import CaseSummary, Measures, PairedDifference, Summary

FULL = "full"
_COST_COLUMNS = ("worst run", "over oracle", "over default", "wrong", "energy", "time", "tries")
_REGRETS = "Regret: whole trainings wasted against the oracle, ± half of a 95 % interval."
_COSTS = (
    "Worst run: the largest regret. Costs: all recurrences, over those of the oracle and of the default batch size. "
    "Wrong: share of the last ten recurrences. Energy and time: last five, over the default's. "
    "Tries: trainings per recurrence."
)
_OF_TRIAL = {"cost": "cost_j", "judged_cost": "judged_cost_j"}
"""Columns of a CSV file that are not called like the field of a trial that they hold."""


def as_json(summaries: Sequence[Summary], difference: PairedDifference | None) -> dict[str, Any]:
    """A summary as one JSON object, and under ``against`` that of the policy it is compared with.

    Means and half widths; null where there is nothing to compare with.
    """
    first, *others = (
        {
            "policy": summary.policy,
            "seeds": len(summary.seeds),
            "problems": [_problem(case) for case in summary.problems],
            "total": asdict(summary.total),
        }
        for summary in summaries
    )
    if difference is None:
        return first
    shown = {"regret": difference.regret, "cost_over_oracle": difference.cost_over_oracle}
    return {**first, "against": others[0], "difference": shown}


def sentence_of(difference: PairedDifference) -> str:
    """What one policy wastes less than the other, for people."""
    shown = (f"{_with_interval(estimate, sign='+')} @{horizon}" for horizon, estimate in difference.regret.items())
    return f"{difference.policy} minus {difference.against}, with the same luck: regret {', '.join(shown)}"


def tables_of(summary: Summary, console: Console) -> tuple[Table, ...]:
    """A summary for people: a line for each problem, and one for all. Two tables where one is wider than the screen."""
    seeds = f"{len(summary.seeds)} seed{'s' if len(summary.seeds) > 1 else ''}"
    title = f"{summary.policy}: {counted(len(summary.problems), 'problem')}, {seeds}"
    longest = max(case.recurrences for case in summary.problems)
    horizons = [horizon for horizon in summary.total.regret if horizon != str(longest)]
    regrets = ("best", "n", *(f"regret @{horizon}" for horizon in horizons))
    whole = _table(summary, title, (*regrets, *_COST_COLUMNS), horizons, f"{_REGRETS} {_COSTS}")
    if whole.fits(console.width):
        return (whole,)
    return (
        _table(summary, title, regrets, horizons, _REGRETS),
        _table(summary, "", _COST_COLUMNS, horizons, _COSTS),
    )


def _table(summary: Summary, title: str, columns: Sequence[str], horizons: Sequence[str], caption: str) -> Table:
    made = Table(title, "problem", *columns, right=columns, flexible=("problem",), notes=[caption])
    for case in summary.problems:
        known = {"best": str(case.oracle_batch_size), "n": str(case.recurrences), **_cells(case.measures, horizons)}
        made.add_row(case.name, *(known[column] for column in columns))
    made.add_section()
    total = _cells(summary.total, horizons)
    made.add_row("all", *(total.get(column, "") for column in columns))
    return made


def write_trials(results: Sequence[CaseRuns], path: Path) -> None:
    """Write every trial of every run, one a line."""
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = (_line(result, run, trial) for result in results for run in result.runs for trial in run.trials)
        first = next(lines)
        writer = csv.DictWriter(file, list(first), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: csv_cell(value) for name, value in line.items()} for line in chain([first], lines))


def _line(result: CaseRuns, run: Run, trial: SimulatedTrial) -> dict[str, object]:
    problem = run.problem.at(trial.recurrence)
    fields = asdict(trial) | {"outcome": trial.outcome.value, "is_profiling": str(trial.is_profiling).lower()}
    return {
        "problem": result.case.name,
        "gpu": problem.gpu,
        "target_metric": problem.workload.target_metric,
        "policy": run.policy,
        "seed": run.seed,
        **{_OF_TRIAL.get(name, name): value for name, value in fields.items()},
    }


def _problem(case: CaseSummary) -> dict[str, Any]:
    problem = case.problem
    return {
        "name": case.name,
        "dataset": problem.workload.dataset,
        "network": problem.workload.network,
        "optimizer": problem.workload.optimizer,
        "target_metric": problem.workload.target_metric,
        "gpu": problem.gpu,
        "phases": [
            {"recurrence": start, "gpu": part.gpu, "target_metric": part.workload.target_metric}
            for start, part in problem.phases.items()
        ],
        "batch_sizes": problem.batch_sizes,
        "default_batch_size": problem.default_batch_size,
        "oracle_batch_size": case.oracle_batch_size,
        "recurrences": case.recurrences,
        **asdict(case.measures),
    }


def _cells(measures: Measures, horizons: Sequence[str]) -> dict[str, str]:
    """What stands in a line, by column."""
    return {
        **{f"regret @{horizon}": _with_interval(measures.regret.get(horizon)) for horizon in horizons},
        "worst run": f"{measures.worst_run:.1f}" if math.isfinite(measures.worst_run) else NOTHING,
        "over oracle": _more(measures.cost_over_oracle),
        "over default": _more(measures.cost_over_default),
        "wrong": percent(measures.wrong_share[FULL].mean),
        "energy": percent(measures.last5_energy_over_default.mean),
        "time": percent(measures.last5_time_over_default.mean),
        "tries": _with_interval(measures.tries_per_recurrence, digits=2),
    }


def _with_interval(estimate: MeanEstimate | None, digits: int = 1, sign: str = "") -> str:
    if estimate is None or estimate.mean is None:
        return NOTHING
    half = "" if estimate.ci95 is None else f" ± {estimate.ci95:.{digits}f}"
    return f"{estimate.mean:{sign}.{digits}f}{half}"


def _more(estimates: Mapping[str, MeanEstimate]) -> str:
    return more_or_less(estimates[FULL].mean)
