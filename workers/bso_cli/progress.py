"""What counts on standard error while something long runs; nothing where nobody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bso.domain.foreign_text import shown
from bso_cli.terminal import onlookers

if TYPE_CHECKING:
    from bso.simulator import Run


@dataclass(frozen=True, slots=True)
class Counter:
    """A line that counts what has been done."""

    _bar: Progress
    _task: TaskID

    def __call__(self, count: int) -> None:
        """Say that so many more are done."""
        self._bar.advance(self._task, count)

    def now(self, doing: str) -> None:
        """Say what is being done now."""
        self._bar.update(self._task, description=shown(doing))


@contextmanager
def counting(doing: str, noun: str) -> Iterator[Counter]:
    """Show a line that counts, while the block runs."""
    count = TextColumn("[bold]{task.completed:,}[/] " + noun)
    with _shown(SpinnerColumn(), TextColumn("{task.description}", markup=False), count, TimeElapsedColumn()) as bar:
        yield Counter(bar, bar.add_task(shown(doing), total=None))


@contextmanager
def simulating(runs: int) -> Iterator[Callable[[Run], None]]:
    """Show a bar, and give what moves it on by one simulated run."""
    title = TextColumn("[bold]simulations[/]")
    latest = TextColumn("{task.description}", markup=False)
    with _shown(title, MofNCompleteColumn(), BarColumn(bar_width=30), TimeRemainingColumn(), latest) as bar:
        task = bar.add_task("", total=runs)
        yield lambda run: bar.update(task, advance=1, description=shown(f"{run.problem.name}, seed {run.seed}"))


def _shown(*columns: ProgressColumn) -> Progress:
    return Progress(*columns, console=onlookers(), transient=True, disable=not onlookers().is_terminal)
