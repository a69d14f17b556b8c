"""The demo while it runs: a bar over the recurrences, and a line for each trial that has ended."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bso.domain.quantities import joules
from bso.domain.trial import Outcome
from bso_cli.demo.training import News
from bso_cli.terminal import HANG, counted, print_words, styled


class DemoProgress:
    """Shows news as they come; a context manager around the training."""

    def __init__(self, console: Console, *, recurrences: int, has_choice: bool) -> None:
        self._has_choice = has_choice
        self._bar = Progress(
            TextColumn("[bold]recurrence[/]"),
            MofNCompleteColumn(),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=recurrences)

    def __enter__(self) -> Self:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take the bar away; the lines stay."""
        self._bar.stop()

    def show(self, news: News) -> None:
        """Show what a training has done."""
        if news.outcome is None:
            accuracy = f", reads {news.accuracy:.1%}" if news.accuracy is not None else ""
            self._bar.update(self._task, description=f"batch size {news.batch_size}, epoch {news.epoch}{accuracy}")
            return
        has_model = news.outcome is Outcome.CONVERGED
        mark, colour = ("✓", "green") if has_model else ("✗", "yellow")
        reasons = [news.choice] if self._has_choice else []
        reasons += [] if has_model else [news.outcome_reason]
        print_words(
            styled(
                f"[{colour}]{mark}[/] trial {news.trial_number or '?':>3}: batch size [bold]{news.batch_size:>4}[/], "
                f"{counted(news.epoch, 'epoch'):>9}, {joules(news.cost):>6}  [dim]{escape('; '.join(reasons))}[/]"
            ),
            on=self._bar.console,
            hang=HANG,
        )

    def recurrence_ended(self) -> None:
        """Move the bar on."""
        self._bar.advance(self._task)
