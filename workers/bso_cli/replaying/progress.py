"""A line on standard error that counts while something long runs; nothing where nobody watches."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bso_cli.terminal import onlookers


class Counter:
    """Counts what has been done; a context manager around the work."""

    def __init__(self, doing: str, noun: str) -> None:
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("[bold]{task.completed:,}[/] " + noun),
            TimeElapsedColumn(),
            console=onlookers(),
            transient=True,
            disable=not onlookers().is_terminal,
        )
        self._task = self._bar.add_task(doing, total=None)

    def __enter__(self) -> Self:
        """Show the line."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take it away."""
        self._bar.stop()

    def __call__(self, count: int) -> None:
        """Say that so many more are done."""
        self._bar.advance(self._task, count)

    def now(self, doing: str) -> None:
        """Say what is being done now."""
        self._bar.update(self._task, description=doing)
