"""What a run has come to: a table for people, one object for programs, and what it saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from bso.domain.quantities import NOTHING, joules, percent, seconds
from bso.domain.tally import LAST
from bso.domain.trial import Outcome
from bso_cli.jobs_printed import ENERGY_IS_ASSUMED
from bso_cli.recurring.recurrences import Occasion, RecurringRun, signal_of
from bso_cli.recurring.trials import SeenTrial
from bso_cli.tables import Table
from bso_cli.terminal import counted, moment

MOST_JOBS_NAMED = 5
_MARKS = {
    Outcome.CONVERGED: "[green]{}✓[/]",
    Outcome.INTERRUPTED: "[dim]{}?[/]",
    Outcome.CANCELLED: "[dim]{}–[/]",
    None: "[cyan]{}…[/]",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultComparison:
    """What recurrences cost beside trainings with the default batch size. Means in J over so many of each.

    ``share`` is what the ``recurrences``, failures and exploration included, cost less, ``last_share`` what the last
    five of them do; negative: more.
    """

    default_batch_size: int
    default_cost: float
    defaults: int
    cost: float
    recurrences: int
    last_cost: float
    is_energy_assumed: bool
    share: float
    last_share: float


def saving(recurrences: Sequence[Occasion]) -> DefaultComparison | None:
    """What was saved; None while no training with the default batch size, or nothing else, has converged."""
    with_model = [one for one in recurrences if one.has_model and not one.is_open]
    trials = [trial for one in recurrences for trial in one.trials]
    if len({(trial.job_id, trial.default_batch_size, trial.energy_method) for trial in trials}) != 1:
        return None  # several jobs, or costs that cannot be compared
    default = trials[0].default_batch_size
    costs = [trial.cost for trial in trials if trial.batch_size == default and trial.outcome is Outcome.CONVERGED]
    if default is None or not costs or fmean(costs) <= 0 or len(with_model) < 2:
        return None
    default_cost, cost = fmean(costs), fmean(one.cost for one in with_model)
    last_cost = fmean(one.cost for one in with_model[-LAST:])
    return DefaultComparison(
        default_batch_size=default,
        default_cost=default_cost,
        defaults=len(costs),
        cost=cost,
        recurrences=len(with_model),
        last_cost=last_cost,
        is_energy_assumed=trials[0].is_energy_assumed,
        share=1 - cost / default_cost,
        last_share=1 - last_cost / default_cost,
    )


def summary_fields(run: RecurringRun) -> dict[str, Any]:
    """The run as a JSON object. Costs and energies in J, times in s."""
    recurrences = run.recurrences
    found = saving(recurrences)
    return {
        "command": run.command,
        "requested": run.count,
        "recurrences": [_fields(one) for one in recurrences],
        "failed": sum(one.has_failed for one in recurrences),
        "interrupted": sum(one.is_interrupted for one in recurrences),
        "without_model": sum(one.is_without_model for one in recurrences),
        "cost": sum(one.cost for one in recurrences),
        "time_s": sum(one.time_s for one in recurrences),
        "saving": found,
    }


def summary_table(recurrences: Sequence[Occasion]) -> Table:
    """One line per recurrence; without costs where no trial began."""
    trained = any(one.trials for one in recurrences)
    is_assumed = _is_assumed(*recurrences)
    numbers = ("time", *(() if is_assumed else ("energy",)), "cost")
    marks = "✓ converged, ✗ failed, ? interrupted, – called off, … running"
    made = Table(
        "Recurrences",
        *("no.", "began (UTC)", *(("batch sizes", *numbers) if trained else ()), "outcome"),
        right=("no.", *(numbers if trained else ())),
        flexible=("batch sizes",) if trained else (),
        notes=[*([marks] if trained else []), *([ENERGY_IS_ASSUMED] if is_assumed else [])],
    )
    for one in recurrences:
        costs = _cost_cells(one, with_energy=not is_assumed) if trained else []
        made.add_row(str(one.number), moment(one.began_at)[5:16], *costs, _outcome(one))
    return made


def _cost_cells(one: Occasion, *, with_energy: bool) -> list[str]:
    """The batch sizes, the time, the energy, the cost of a recurrence."""
    return [
        " ".join(_mark(trial) for trial in one.trials) or NOTHING,
        seconds(one.time_s) if one.trials else NOTHING,
        *(["assumed" if _is_assumed(one) else joules(one.energy_j)] if with_energy else []),
        joules(one.cost if one.trials else None),
    ]


def _is_assumed(*recurrences: Occasion) -> bool:
    """Whether the energy of all their trials, and there are some, was assumed."""
    trials = [trial for one in recurrences for trial in one.trials]
    return bool(trials) and all(trial.is_energy_assumed for trial in trials)


def total_in_words(run: RecurringRun) -> str:
    """The run in one line; without its cost where no trial began."""
    done = run.recurrences
    closed = sum(1 for one in done if not one.is_open or one.has_failed)
    without_model = sum(one.is_without_model and not one.is_interrupted for one in done)
    parts = [
        f"{closed} of {counted(run.count, 'recurrence')} done",
        f"{sum(one.has_failed for one in done)} failed",
        f"{without_model} without a model",
    ]
    if interrupted := sum(one.is_interrupted for one in done):
        parts.append(f"{interrupted} interrupted")
    if any(one.trials for one in done):
        parts.append(f"total cost {joules(sum(one.cost for one in done))}")
    return ", ".join(parts)


def called_off_in_words(recurrences: Sequence[Occasion]) -> list[str]:
    """Why recurrences were called off, a sentence each."""
    found = [(one.number, one.called_off) for one in recurrences]
    return [f"recurrence {no} was called off: {trial.outcome_reason}" for no, trial in found if trial is not None]


def warnings_of_last(recurrences: Sequence[Occasion]) -> tuple[str, ...]:
    """What the optimizer has warned of in the last trial."""
    trials = [trial for one in recurrences for trial in one.trials]
    return trials[-1].warnings if trials else ()


def several_jobs_in_words(recurrences: Sequence[Occasion]) -> str | None:
    """That recurrences trained different jobs, which is seldom meant; None: they did not."""
    trained = [frozenset(trial.job_id for trial in one.trials) for one in recurrences if one.trials]
    if len(set(trained)) <= 1:
        return None
    jobs = sorted(frozenset.union(*trained))
    more = f" and {len(jobs) - MOST_JOBS_NAMED} more" if len(jobs) > MOST_JOBS_NAMED else ""
    return (
        f"the recurrences trained different jobs ({', '.join(jobs[:MOST_JOBS_NAMED])}{more}), and nothing is learnt "
        "from one job for another: give them one name, with JobSpec(job_id=...) or --job-id"
    )


def saving_in_words(found: DefaultComparison) -> str:
    """What was saved, as a sentence or two."""
    last = (
        f" The last {LAST} cost {joules(found.last_cost)}, {_less(found.last_share)}."
        if found.recurrences > LAST
        else ""
    )
    return (
        f"A model cost {joules(found.cost)} (mean of {found.recurrences}, with all that failed on the way), "
        f"{_less(found.share)} than a training with the default batch size {found.default_batch_size} "
        f"({joules(found.default_cost)}, mean of {found.defaults}).{last}"
    )


def _less(share: float) -> str:
    return f"{percent(abs(share))} {'less' if share >= 0 else 'more'}"


def _fields(one: Occasion) -> dict[str, Any]:
    return {
        "number": one.number,
        "recurrence_id": one.recurrence_id,
        "began_at": one.began_at,
        "ended_at": one.ended_at,
        "exit_code": one.exit_code,
        "launches": len(one.launches),
        "cost": one.cost,
        "energy_j": one.energy_j,
        "time_s": one.time_s,
        "has_model": one.has_model,
        "trials": one.trials,
    }


def _mark(trial: SeenTrial) -> str:
    return _MARKS.get(trial.outcome, "[yellow]{}✗[/]").format(trial.batch_size)


def _outcome(one: Occasion) -> str:
    if one.is_running:
        return "[cyan]not ended[/]"
    if one.called_off is not None:
        return "[yellow]called off[/]"
    if one.is_interrupted:
        return "[yellow]interrupted[/]"
    if one.exit_code:
        return f"[red]{signal_of(one.exit_code) or f'exit code {one.exit_code}'}[/]"
    if one.is_open:
        return "[yellow]stopped[/]"
    return "[green]model[/]" if one.has_model else "[yellow]no model[/]" if one.trials else "no trial"
