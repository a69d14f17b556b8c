"""A bar on standard error that counts simulations; nothing where nobody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bso_cli.terminal import onlookers

if TYPE_CHECKING:
    from bso.simulator import Run


@contextmanager
def progress(simulations: int) -> Iterator[Callable[[Run], None]]:
    """Show the bar, and give what moves it on by one run."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("[bold]simulations[/]"),
        MofNCompleteColumn(),
        BarColumn(bar_width=30),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=onlookers(), transient=True, disable=not onlookers().is_terminal) as bar:
        task = bar.add_task("", total=simulations)
        yield lambda run: bar.update(task, advance=1, description=f"{run.problem.name}, seed {run.seed}")
