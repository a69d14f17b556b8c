"""The axes of a picture, their labels and titles, and the legend above them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bso.drawing.looks import AXIS, GRID, Look
from bso.drawing.scales import Tick
from bso.drawing.svg import Markup, Size, mark, path, text, width_of

_LEFT, _RIGHT, _TOP, _BOTTOM = 76.0, 18.0, 8.0, 44.0
_ROW = 19.0  # of the legend


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a legend says of one look."""

    look: Look
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The axes of a picture and its legend, which begins in the row of the vertical axis' title."""

    size: Size
    x_title: str
    y_title: str
    legend: tuple[Entry, ...]

    @property
    def left(self) -> float:
        """Where the horizontal axis begins: at the same place in all pictures."""
        return _LEFT

    @property
    def right(self) -> float:
        """Where the horizontal axis ends."""
        return self.size.width - _RIGHT

    @property
    def top(self) -> float:
        """Where the vertical axis ends."""
        rows = max((row for _, row, _ in self._placed()), default=0) + 1
        return _TOP + rows * _ROW + 8.0

    @property
    def bottom(self) -> float:
        """Where the vertical axis begins."""
        return self.size.height - _BOTTOM

    def grid(self, x_ticks: Sequence[Tick], y_ticks: Sequence[Tick]) -> Markup:
        """Thin lines across the picture at the ticks."""
        across = [((self.left, tick.at), (self.right, tick.at)) for tick in y_ticks]
        upwards = [((tick.at, self.bottom), (tick.at, self.top)) for tick in x_ticks]
        return path(GRID, [*across, *upwards])

    def axes(self, x_ticks: Sequence[Tick], y_ticks: Sequence[Tick]) -> list[Markup]:
        """Both axes with the labels of their ticks, their titles, and the legend."""
        corner = ((self.left, self.top), (self.left, self.bottom), (self.right, self.bottom))
        return [
            path(AXIS, [corner]),
            *(self._x_label(tick) for tick in x_ticks),
            *(
                text(tick.label, (self.left - 8.0, tick.at + 4.0), anchor="end", room=self.left - 12.0)
                for tick in y_ticks
            ),
            text(self.x_title, ((self.left + self.right) / 2, self.size.height - 8.0), anchor="middle"),
            text(self.y_title, (8.0, _TOP + 13.0), weight="bold"),
            *self._legend(),
        ]

    def _x_label(self, tick: Tick) -> Markup:
        half = width_of(tick.label) / 2
        at = min(max(tick.at, half + 2.0), self.size.width - half - 2.0)
        return text(tick.label, (at, self.bottom + 17.0), anchor="middle")

    def _legend(self) -> Iterable[Markup]:
        for entry, row, left in self._placed():
            middle = _TOP + row * _ROW + 9.0
            yield mark(entry.look, (left + 8.0, middle), radius=5.0)
            yield text(entry.words, (left + 21.0, middle + 4.0), room=self.size.width - left - 23.0)

    def _placed(self) -> Iterable[tuple[Entry, int, float]]:
        """The entries, each with its row and where it begins there."""
        first = max(_LEFT, 8.0 + width_of(self.y_title) + 24.0)
        row, left = 0, first
        for entry in self.legend:
            width = 21.0 + width_of(entry.words)
            if left > first and left + width > self.right:
                row, left = row + 1, first
            yield entry, row, left
            left += width + 16.0
