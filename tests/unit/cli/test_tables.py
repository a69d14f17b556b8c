"""Tables and sentences on screens of any width."""

import io
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bso_cli.tables import Cell, Table
from bso_cli.terminal import wrapped

WORDS = st.text(alphabet="abcdefgh-/%", min_size=1, max_size=14)
QUANTITIES = st.sampled_from(["1.01 kJ", "12 ms", "0.5 W", "3 d", "14x"])
CELLS = st.lists(WORDS | QUANTITIES, min_size=1, max_size=4).map(" ".join)
ROOMY = 100
"""So wide that the longest cell, of 59 letters, fits beside the longest words of two others."""


def printed(what: object, *, width: int) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(what, overflow="ignore", crop=False)
    return stream.getvalue().splitlines()


def two_columns(*rows: tuple[str, Cell], optional: Sequence[str] = ()) -> Table:
    made = Table("", "what", "how it went", optional=optional)
    for row in rows:
        made.add_row(*row)
    return made


@given(
    rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=4),
    width=st.integers(min_value=20, max_value=120),
    optional=st.sampled_from([(), ("second",)]),
)
def test_no_line_is_too_long_and_every_word_stands_whole(
    rows: list[tuple[str, str, str]], width: int, optional: tuple[str, ...]
) -> None:
    made = Table("a title", "first", "second", "third one", flexible=("first", "third one"), optional=optional)
    for row in rows:
        made.add_row(*row)
    lines = printed(made, width=width)
    assert max(map(len, lines)) <= width
    shown = {word.strip(":;") for line in lines for word in line.split()}
    is_left_out = "second." in shown
    assert not is_left_out or (optional and width < ROOMY)
    for first, second, third in rows:
        kept = [first, third] if is_left_out else [first, second, third]
        assert {word.strip(":;") for cell in kept for word in cell.split()} <= shown


def test_only_a_whole_word_is_a_unit() -> None:
    made = two_columns(("a", "14x h/aaaaaaaaaaa"))
    assert max(map(len, printed(made, width=20))) <= 20


@given(cells=st.tuples(CELLS, CELLS, QUANTITIES), width=st.integers(min_value=20, max_value=120))
def test_a_number_in_a_cell_stays_with_its_unit(cells: tuple[str, str, str], width: int) -> None:
    made = Table("", "first", "second", "third one", flexible=("first", "third one"))
    first, second, quantity = cells
    made.add_row(first, second, f"it had cost {quantity} by then")
    assert any(quantity in line for line in printed(made, width=width))


def test_where_there_is_room_each_row_is_one_line() -> None:
    made = two_columns(("one", ["504 J", "(449 to 596 J)"]), ("two", ["1 J", "(0 to 2 J)"]))
    assert [line for line in printed(made, width=80) if " J" in line] == [
        "one   504 J (449 to 596 J)",
        "two   1 J (0 to 2 J)",
    ]


def test_where_there_is_none_the_lines_of_cells_stand_below_each_other() -> None:
    made = two_columns(("one", ["504 J", "(449 to 596 J)"]))
    assert printed(made, width=21)[-2:] == ["one   504 J", "      (449 to 596 J)"]


def test_cells_get_room_before_headings_do() -> None:
    made = Table("", "a rather long heading", "remark", flexible=("remark",))
    made.add_row("1", "never tried")
    assert "1         never tried" in printed(made, width=21)


def test_optional_columns_are_left_out_first_and_said_to_be() -> None:
    rows = [("one", "converged, and cheaply")]
    said = " ".join(printed(two_columns(*rows, optional=("what",)), width=24))
    assert said.endswith("converged, and cheaply No room for: what.")


def test_a_screen_that_is_too_narrow_for_any_table_gets_paragraphs() -> None:
    lines = printed(two_columns(("one", "converged")), width=12)
    assert lines == ["one", "    how it", "    went:", "    converged"]


def test_lines_have_no_blanks_at_their_ends() -> None:
    lines = printed(two_columns(("one", "x"), ("two", "something longer")), width=80)
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (80, ["it had cost 1.01 kJ after 2 h 05 min"]),
        (18, ["it had cost", "    1.01 kJ after", "    2 h 05 min"]),
        (16, ["it had cost", "    1.01 kJ", "    after 2 h", "    05 min"]),
    ],
)
def test_a_number_stays_with_its_unit(width: int, lines: list[str]) -> None:
    assert wrapped("it had cost 1.01 kJ after 2 h 05 min", width=width, hang=4).plain.splitlines() == lines


def test_a_path_that_is_longer_than_a_line_stays_whole() -> None:
    path = "/a/very/long/path/that/somebody/wants/to/copy"
    assert wrapped(f"Picture: {path}", width=20).plain.splitlines() == ["Picture:", path]
