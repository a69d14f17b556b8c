"""What a run has come to: a table for people, one object for programs, and what it saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bso.domain.quantities import NOTHING, counted, joules, moment, seconds
from bso.domain.recurrence_costs import Saving, saved_in_words, saving_of
from bso.domain.trial import Outcome
from bso_cli.jobs_printed import ENERGY_IS_ASSUMED
from bso_cli.recurring.recurrences import RecurringRun, ScheduledRun, counted_once, signal_of
from bso_cli.recurring.trials import SeenTrial
from bso_cli.tables import Table
from bso_cli.terminal import styled

MOST_JOBS_NAMED = 5
_FEWEST_COMPARED = 5  # recurrences: a mean of fewer says little
_MARKS = {
    Outcome.CONVERGED: "[green]{}✓[/]",
    Outcome.INTERRUPTED: "[dim]{}?[/]",
    Outcome.CANCELLED: "[dim]{}–[/]",
    None: "[cyan]{}…[/]",
}
_RESUMED = "↻"
_MARKS_IN_WORDS = "✓ converged, ✗ failed, ? interrupted, – called off, … running"
_OF_RECURRENCE = ("number", "recurrence_id", "began_at", "ended_at", "exit_code", "launches", "has_model")
_SUMS = ("cost", "energy_j", "time_s")
_OF_BEGIN = ("trial_number", "trial_id", "attempt", "batch_size", "reason")
_OF_TRIAL = (
    "job_id",
    "energy_method",
    "outcome",
    "outcome_reason",
    "is_resumed",
    "epoch",
    "metric",
    "warnings",
    *_SUMS,
)


def saving(recurrences: Sequence[ScheduledRun]) -> Saving | None:
    """What recurrences saved beside trainings with the default batch size; None while nothing can be compared."""
    trials = [trial for one in recurrences for trial in one.trials]
    if len({(trial.job_id, trial.begun.spec.default_batch_size, trial.energy_method) for trial in trials}) != 1:
        return None  # several jobs, or costs that cannot be compared
    default = trials[0].begun.spec.default_batch_size
    converged = [trial for trial in trials if trial.outcome is Outcome.CONVERGED]
    costs = [one.cost for one in counted_once(recurrences) if one.trials and one.ended_at is not None]
    others = [trial.cost for trial in converged if trial.begun.batch_size == default]
    return saving_of(costs, others) if len(costs) > 1 else None


def saving_in_words(recurrences: Sequence[ScheduledRun]) -> str:
    """What recurrences saved, as a sentence; empty where nothing, or too little, can be compared."""
    specs = [trial.begun.spec for one in recurrences for trial in one.trials]
    found = saving(recurrences)
    return "" if found is None or found.count < _FEWEST_COMPARED else saved_in_words(found, specs[0])


def summary_fields(run: RecurringRun) -> dict[str, Any]:
    """The run as a JSON object. Costs and energies in J, times in s."""
    recurrences = run.recurrences
    return {
        "command": run.command,
        "requested": run.count,
        "recurrences": [_fields(one) for one in recurrences],
        "failed": sum(one.has_failed for one in recurrences),
        "interrupted": sum(one.is_interrupted for one in recurrences),
        "without_model": sum(one.is_without_model for one in recurrences),
        "cost": sum(one.cost for one in counted_once(recurrences)),
        "time_s": sum(one.time_s for one in counted_once(recurrences)),
        "saving": saving(recurrences),
    }


def _fields(one: ScheduledRun) -> dict[str, Any]:
    trials = [_of(trial) for trial in one.trials]
    return {**_named(one, (*_OF_RECURRENCE, *_SUMS)), "trials": trials}


def _of(trial: SeenTrial) -> dict[str, Any]:
    fields = _named(trial.begun, _OF_BEGIN) | _named(trial, _OF_TRIAL)
    if not trial.begun.trial_id:
        fields |= {"trial_number": None, "trial_id": None}  # it is not registered yet
    return fields


def _named(value: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def summary_table(recurrences: Sequence[ScheduledRun]) -> Table:
    """One line per recurrence."""
    is_assumed = _is_assumed(*recurrences)
    has_resumed = any(trial.is_resumed for one in recurrences for trial in one.trials)
    marks = f"{_MARKS_IN_WORDS}, {_RESUMED} resumed" if has_resumed else _MARKS_IN_WORDS
    numbers = ("time", *(() if is_assumed else ("energy",)), "cost")
    made = Table(
        "Recurrences",
        *("no.", "began (UTC)", "batch sizes", *numbers, "outcome"),
        right=("no.", *numbers),
        flexible=("batch sizes",),
        notes=[marks, *([ENERGY_IS_ASSUMED] if is_assumed else [])],
    )
    for one in recurrences:
        energy = "assumed" if _is_assumed(one) else joules(one.energy_j)
        made.add_row(
            *(str(one.number), moment(one.began_at)[5:16]),
            styled(" ".join(map(_mark, one.trials)) or NOTHING),
            seconds(one.time_s) if one.trials else NOTHING,
            *([] if is_assumed else [energy]),
            joules(one.cost if one.trials else None),
            styled(_outcome(one)),
        )
    return made


def _is_assumed(*recurrences: ScheduledRun) -> bool:
    """Whether the energy of all their trials, and there are some, was assumed."""
    trials = [trial for one in recurrences for trial in one.trials]
    return bool(trials) and all(trial.is_energy_assumed for trial in trials)


def _mark(trial: SeenTrial) -> str:
    size = f"{trial.begun.batch_size}{_RESUMED if trial.is_resumed else ''}"
    return _MARKS.get(trial.outcome, "[yellow]{}✗[/]").format(size)


def _outcome(one: ScheduledRun) -> str:
    if one.is_running:
        return "[cyan]not ended[/]"
    if one.called_off is not None:
        return "[yellow]called off[/]"
    if one.is_interrupted:
        return "[yellow]interrupted[/]"
    if one.exit_code:
        return f"[red]{signal_of(one.exit_code) or f'exit code {one.exit_code}'}[/]"
    if one.ended_at is None:
        return "[yellow]stopped[/]"
    return "[green]model[/]" if one.has_model else "[yellow]no model[/]" if one.trials else "no trial"


def total_in_words(run: RecurringRun) -> str:
    """The run in one line; without its cost where no trial began."""
    done = run.recurrences
    cost = sum(one.cost for one in counted_once(done))
    closed = sum(one.ended_at is not None or one.has_failed for one in done)
    interrupted = sum(one.is_interrupted for one in done)
    without_model = sum(one.is_without_model and not one.is_interrupted for one in done)
    return (
        f"{closed} of {counted(run.count, 'recurrence')} done, {sum(one.has_failed for one in done)} failed, "
        f"{without_model} without a model"
        + (f", {interrupted} interrupted" if interrupted else "")
        + (f", total cost {joules(cost)}" if any(one.trials for one in done) else "")
    )


def several_jobs_in_words(recurrences: Sequence[ScheduledRun]) -> str:
    """That recurrences trained different jobs, which is seldom meant; empty: they did not."""
    trained = {frozenset(trial.job_id for trial in one.trials) for one in recurrences if one.trials}
    if len(trained) < 2:
        return ""
    names = sorted({name for names in trained for name in names})[:MOST_JOBS_NAMED]
    return (
        f"the recurrences trained different jobs ({', '.join(names)}), and nothing is learnt from one job for another: "
        "give them one name, with JobSpec(job_id=...) or BSO_JOB_ID"
    )
