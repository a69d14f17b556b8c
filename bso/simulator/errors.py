"""What can be wrong with a simulation: a trace file, or what is asked of it."""

from __future__ import annotations

from pathlib import Path

from bso.domain.errors import Rejected


class InvalidTrace(Rejected):
    """A trace file cannot be used; the message names the file and the line, what came and what was expected."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        where = f"{path}" if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {problem}")


class InvalidSimulation(Rejected):
    """The simulation cannot run as asked; the message says what came, what was expected, and what to do."""
