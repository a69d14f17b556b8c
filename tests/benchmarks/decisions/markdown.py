"""Tables in Markdown, and what stands in their cells."""

from collections.abc import Sequence

from tests.benchmarks.decisions.rows import Cell
from tests.benchmarks.resampling import Interval


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, ["---"] * len(headings), *lines))


def cell_words(found: Cell, digits: int = 1) -> str:
    """A mean, its interval, and the worst parts with their means."""
    worst = (f"{each.mean:.{digits}f} {each.name}" for each in found.worst)
    return "; ".join([interval_words((found.low, found.mean, found.high), digits), *worst])


def interval_words(interval: Interval, digits: int = 1) -> str:
    """What was found, and its interval in brackets."""
    low, found, high = (f"{each:.{digits}f}" for each in interval)
    return f"{found} ({low} to {high})"
