"""The results of the demo in words."""

from __future__ import annotations

from rich.table import Table

from bso.cli.demo.summary import BatchSizeSummary, DemoSummary
from bso.cli.terminal import NOTHING, counted, number, percent, table


def results_table(summary: DemoSummary) -> Table:
    """One line per batch size."""
    numbers = ("batch\nsize", "trials", "con-\nverged", "epochs", "energy\n[J]*", "time\n[s]", "cost\n[J]*")
    made = table(
        f"{summary.job_id}: {counted(summary.trials, 'trial')} in {counted(summary.recurrences, 'recurrence')}",
        *numbers,
        "posterior\ncost [J]*",
        "status",
        right=(*numbers, "posterior\ncost [J]*"),
        flexible=("status",),
        caption=f"Means are of the trials that converged. * Energy {summary.energy_method}.",
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
    error = f" ± {saving.error:.0%}" if saving.error is not None else ""
    less, shorter = ("less" if saving.cost >= 0 else "more"), ("shorter" if saving.time >= 0 else "longer")
    share = f"[bold]{percent(abs(saving.cost))}[/]{error}"
    so_far = " so far, still exploring" if summary.stage == "Pruning" else ""
    return (
        f"Best batch size{so_far}: [bold green]{best}[/]. Its trainings cost {share} {less} "
        f"than with the default {default} and are {percent(abs(saving.time))} {shorter} "
        f"(means of {saving.best_trials} and {counted(saving.default_trials, 'training')} that reached the target)."
    )


def _cells(one: BatchSizeSummary, summary: DemoSummary) -> tuple[str, ...]:
    return (
        str(one.batch_size),
        str(one.trials),
        str(one.converged),
        number(one.mean_epochs, 3),
        number(one.mean_energy, 3),
        number(one.mean_time, 3),
        number(one.mean_cost, 3),
        _posterior(one),
        f"{one.status}{', default' if one.batch_size == summary.default_batch_size else ''}",
    )


def _posterior(one: BatchSizeSummary) -> str:
    if one.posterior_mean is None or one.posterior_std is None:
        return NOTHING
    return f"{number(one.posterior_mean, 3)} ± {number(one.posterior_std, 2)}"
