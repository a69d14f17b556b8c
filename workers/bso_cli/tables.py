"""Tables whose every word stays whole, whatever the width of the screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from bso.domain.foreign_text import shown
from bso.domain.quantities import listed
from bso_cli.terminal import HANG, in_one_line, words_of, wrapped

Cell = str | Text | Sequence[str]
_GAP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The cells of a row."""

    cells: tuple[Text, ...]
    style: str | None
    ends_section: bool = False

    def in_one_line(self) -> Row:
        """The same with the lines of each cell beside each other."""
        return replace(self, cells=tuple(Text(" ").join(cell.split()) for cell in self.cells))


class Table:
    """A title, rows below headings, and notes.

    Columns in ``right`` hold numbers. The lines of a cell stand beside each other where there is room for that in all
    rows. Where the screen is too narrow, headings and the cells of ``flexible`` columns take several lines, broken
    between words; then the columns in ``optional`` are left out, the first of them first, which is said; and if that is
    not enough, each row becomes a paragraph. A cell of several lines is a list of them. Strings are printed as they
    are, whatever markup somebody may have written into them; what has colours is ``styled``.
    """

    def __init__(
        self,
        title: str,
        *columns: str,
        right: Iterable[str] = (),
        flexible: Iterable[str] = (),
        optional: Sequence[str] = (),
        notes: Iterable[str | Text] = (),
    ) -> None:
        self.title = title
        self.columns = tuple(map(shown, columns))
        self.notes = list(notes)
        self.rows: list[Row] = []
        self._right = frozenset(right)
        self._flexible = frozenset(flexible)
        self._optional = optional

    def add_row(self, *cells: Cell, style: str | None = None) -> None:
        """Add a row."""
        assert len(cells) == len(self.columns), f"{len(cells)} cells for {len(self.columns)} columns"
        lines = ([cell] if isinstance(cell, str | Text) else cell for cell in cells)
        self.rows.append(Row(cells=tuple(Text("\n").join(map(_line, cell)) for cell in lines), style=style))

    def add_section(self) -> None:
        """End the rows before with a blank line."""
        if self.rows:
            self.rows[-1] = replace(self.rows[-1], ends_section=True)

    def fits(self, width: int) -> bool:
        """Whether it can be shown as a table, be it without its optional columns."""
        return self._layout(width) is not None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print it as wide as the screen allows."""
        width = options.max_width
        if self.title:
            yield _words(in_one_line(Text(self.title, style="bold")), width)
        layout = self._layout(width)
        left_out: Sequence[str] = ()
        if layout is None:
            yield from self._paragraphs(width)
        elif layout.columns:
            left_out = [heading for heading in self.columns if heading not in layout.columns]
            yield from _stripped(console.render_lines(layout.table(self._right), options, pad=False))
        for note in self.notes:
            yield _words(_line(note), width)
        if left_out:
            yield _words(Text(f"No room for: {listed(left_out)}.", style="dim"), width)

    def _layout(self, width: int) -> _Layout | None:
        """The columns that are shown and their widths; None: not even the least of them fit."""
        for rows, has_all_it_wants in (([row.in_one_line() for row in self.rows], True), (self.rows, False)):
            shown = self.columns
            for leaves in (None, *self._optional):
                shown = tuple(heading for heading in shown if heading != leaves)
                layout = self._of(shown, rows)
                wanted = layout.wanted if has_all_it_wants else layout.needed
                if wanted <= width:
                    return layout.within(width)
                if has_all_it_wants:
                    break
        return None

    def _of(self, shown: tuple[str, ...], rows: Sequence[Row]) -> _Layout:
        places = [self.columns.index(heading) for heading in shown]
        kept = [replace(row, cells=tuple(row.cells[place] for place in places)) for row in rows]
        spans = []
        for index, heading in enumerate(shown):
            lines = [line for row in kept for line in row.cells[index].split()]
            whole = max((line.cell_len for line in lines), default=0)
            words = lines if heading in self._flexible else []
            least = max(map(_longest_word, (Text(heading), *words)))
            in_full = max(least, whole)
            spans.append(_Span(least if words else in_full, in_full, max(len(heading), whole)))
        return _Layout(columns=shown, rows=kept, spans=spans)

    def _paragraphs(self, width: int) -> Iterator[Text]:
        for row in self.rows:
            first, *rest = row.cells
            yield _words(first, width)
            named = [(heading, cell) for heading, cell in zip(self.columns[1:], rest, strict=True) if cell.plain]
            pairs = Text("; ").join(Text(f"{heading}: ").append_text(cell) for heading, cell in named)
            yield _words(Text(" " * HANG).append_text(pairs), width)


class _Span(NamedTuple):
    """The width of a column: at least, with its cells in full, and with its heading in one line."""

    least: int
    in_full: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Columns with the least and the greatest width of each; ``widths`` are those that they get."""

    columns: tuple[str, ...]
    rows: Sequence[Row]
    spans: Sequence[_Span]
    widths: Sequence[int] = ()

    @property
    def needed(self) -> int:
        """The width of all columns at their narrowest."""
        return sum(span.least for span in self.spans) + _GAP * (len(self.spans) - 1)

    @property
    def wanted(self) -> int:
        """The width at which nothing takes more lines than it has."""
        return sum(span.most for span in self.spans) + _GAP * (len(self.spans) - 1)

    def within(self, width: int) -> _Layout:
        """What is left above the least goes to cells, and what is then left to headings, from the left."""
        widths, left = [span.least for span in self.spans], width - self.needed
        for wishes in ([span.in_full for span in self.spans], [span.most for span in self.spans]):
            for index, wish in enumerate(wishes):
                more = min(left, wish - widths[index])
                widths[index] += more
                left -= more
        return replace(self, widths=widths)

    def table(self, right: frozenset[str]) -> RichTable:
        """The table for rich to draw."""
        made = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
        for heading, width in zip(self.columns, self.widths, strict=True):
            made.add_column(Text(heading), width=width, justify="right" if heading in right else "left")
        for row in self.rows:
            cells = [wrapped(cell, width=width) for cell, width in zip(row.cells, self.widths, strict=True)]
            made.add_row(*cells, style=row.style, end_section=row.ends_section)
        return made


def table_of(
    title: str,
    columns: Mapping[str, Sequence[str | Text]],
    *,
    right: Iterable[str],
    optional: Sequence[str],
    absent: Iterable[str],
) -> Table:
    """A table of whole columns, cells from above downwards, without the ``absent`` ones."""
    shown = {heading: cells for heading, cells in columns.items() if heading not in {*absent}}
    made = Table(title, *shown, right=right, optional=[heading for heading in optional if heading in shown])
    for row in zip(*shown.values(), strict=True):
        made.add_row(*row)
    return made


def _line(words: str | Text) -> Text:
    return in_one_line(Text(words) if isinstance(words, str) else words)


def _longest_word(text: Text) -> int:
    return max((Text(word).cell_len for word in words_of(text.plain)), default=0)


def _words(text: Text, width: int) -> Text:
    """Text in lines that end between words, and are not cropped."""
    lines = wrapped(text, width=width, hang=HANG if text.plain.startswith(" ") else 0)
    lines.overflow = "ignore"
    return lines


def _stripped(lines: Iterable[list[Segment]]) -> Iterator[Segment]:
    """Lines without the blanks at their ends, which less and grep would otherwise carry along."""
    for line in lines:
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            last = line.pop()
            line.append(Segment(last.text.rstrip(), last.style, last.control))
        yield from line
        yield Segment.line()
