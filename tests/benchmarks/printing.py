"""Figures as a table for people and as JSON for programs."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from tests.benchmarks.figures import Figure, Spread

_HEADINGS = ("case", "quantity", "min", "median", "max", "ratio", "(min-max)", "to")


def table_of(figures: Sequence[Figure]) -> str:
    """The figures of one benchmark, one a line."""
    rows = [_HEADINGS, *(_cells(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return "\n".join(_line(row, widths) for row in rows)


def json_of(figures: Iterable[Figure], machine: dict[str, object]) -> str:
    """All figures, and the machine that they were measured on."""
    found = [
        {**asdict(figure), "spread": asdict(figure.spread), "ratio": asdict(figure.ratio) if figure.ratio else None}
        for figure in figures
    ]
    return json.dumps({"machine": machine, "figures": found}, indent=2)


def _cells(figure: Figure) -> tuple[str, ...]:
    spread, ratio = figure.spread, figure.ratio
    quantity = f"{figure.quantity} [{figure.unit}]" if figure.unit else figure.quantity
    numbers = tuple(_number(value) for value in (spread.least, spread.middle, spread.greatest))
    return (figure.case, quantity, *numbers, *_ratio_cells(ratio), figure.peer)


def _ratio_cells(ratio: Spread | None) -> tuple[str, str]:
    if ratio is None:
        return "", ""
    return f"{_number(ratio.middle)} x", f"({_number(ratio.least)}-{_number(ratio.greatest)})"


def _number(value: float) -> str:
    if value and abs(value) < 0.995:
        return f"{value:.2g}"
    return f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}".replace(",", " ")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [
        cell.ljust(width) if column in (0, 1, len(widths) - 1) else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(aligned).rstrip()
