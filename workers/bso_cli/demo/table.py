"""The results of the demo in words."""

from __future__ import annotations

from bso.domain.quantities import figure, joules, joules_within, percent, seconds
from bso_cli.demo.summary import BatchSizeSummary, DemoSummary
from bso_cli.jobs_printed import EXPECTED_NEXT, expected_in_words, status_in_words
from bso_cli.tables import Table, table
from bso_cli.terminal import counted

_MEANS = "Epochs, time and cost: means of the trials that converged."


def results_table(summary: DemoSummary) -> Table:
    """One line per batch size."""
    numbers = ("batch size", "trials", "converged", "epochs", "time", "cost", EXPECTED_NEXT)
    made = table(
        f"{summary.job_id}: {counted(summary.trials, 'trial')} in {counted(summary.recurrences, 'recurrence')}",
        *numbers,
        "status",
        right=numbers,
        flexible=("status",),
        notes=(
            f"{_MEANS} A cost is an energy here, {summary.energy_method}.",
            expected_in_words(summary.about_costs),
        ),
    )
    for one in summary.batch_sizes:
        made.add_row(*_cells(one, summary), style="bold green" if one.batch_size == summary.best_batch_size else None)
    return made


def conclusion(summary: DemoSummary) -> str:
    """The best batch size, and what it saves."""
    saving, best, default = summary.saving, summary.best_batch_size, summary.default_batch_size
    if best is None:
        return "Nothing has converged yet: run it again, it goes on."
    if best == default:
        return f"The default batch size {default} is the best one known."
    if saving is None:
        return (
            f"Best batch size: [bold green]{best}[/]. The default {default} has not converged, so nothing to compare."
        )
    error = "" if saving.error is None else f" ± {percent(saving.error, 1)}"
    so_far = " so far, still exploring" if summary.stage == "Pruning" else ""
    return (
        f"Best batch size{so_far}: [bold green]{best}[/]. Its trainings cost [bold]{percent(abs(saving.cost))}[/]"
        f"{error} {_less(saving.cost)} than with the default {default} and are {percent(abs(saving.time))} "
        f"{'shorter' if saving.time >= 0 else 'longer'} (means of {_which(summary)}). "
        f"With all that was tried on the way, a recurrence cost {percent(abs(saving.whole_cost))} "
        f"{_less(saving.whole_cost)} than a training with the default."
    )


def _which(summary: DemoSummary) -> str:
    """The trainings that were compared, counted as the table has them."""
    saving = summary.saving
    assert saving is not None
    best = f"{counted(saving.best_trials, 'training')} with {summary.best_batch_size}"
    default = f"{saving.default_trials} with {summary.default_batch_size}"
    if saving.comparison_trials:
        default += f", {saving.comparison_trials} of them run to compare and not in the table"
    return f"{best} and {default}"


def _less(share: float) -> str:
    return "less" if share >= 0 else "more"


def _cells(one: BatchSizeSummary, summary: DemoSummary) -> tuple[str, ...]:
    status = [status_in_words(one.status, is_best=one.batch_size == summary.best_batch_size)]
    if one.batch_size == summary.default_batch_size:
        status = ["default"] if status == ["available"] else [*status, "default"]
    return (
        str(one.batch_size),
        str(one.trials),
        str(one.converged),
        figure(one.mean_epochs),
        seconds(one.mean_time),
        joules(one.mean_cost),
        joules_within(one.posterior_mean, one.posterior_std),
        ", ".join(status),
    )
