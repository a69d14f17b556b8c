"""Foreign text on its way to a terminal, into JSON and into a spreadsheet."""

import csv
import io
import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso.domain.errors import BsoError, Rejected
from bso.domain.foreign_text import csv_cell, is_plain, shown, shown_in_json, shown_lines, text_of_cell

TEXTS = st.text(st.characters() | st.sampled_from("\x00\t\n\r\x1b\x7f\x85\x9b\u00ad\u200b\u202e\u2028\u3164\U000e0041"))
ANYTHING = TEXTS | st.text(st.characters(categories=["Cs", "Cf", "Cc", "L"]))
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\x00\x07\x08\x7f", r"\x00\x07\x08\x7f"),
        ("\x85\x9b", r"\x85\x9b"),
        ("\r\n\t\x0b\x0c", r"\r\n\t\x0b\x0c"),
        ("\u202a\u202e\u2066\u2069\u200e\u200f\u061c", r"\u202a\u202e\u2066\u2069\u200e\u200f\u061c"),
        ("\u200b\u200d\ufeff\u00ad\u2060", r"\u200b\u200d\ufeff\xad\u2060"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\U000e0001\U000e0041\U000e0100", r"\U000e0001\U000e0041\U000e0100"),
        ("\u034f\u115f\u3164\uffa0", r"\u034f\u115f\u3164\uffa0"),
        ("\udc9b\ud800", r"\udc9b\ud800"),
        ("\ue000\uffff", r"\ue000\uffff"),
    ],
    ids=ascii,
)
def test_what_is_hidden_is_shown(text: str, expected: str) -> None:
    assert shown(f"a{text}b") == f"a{expected}b"
    assert not is_plain(f"a{text}b")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "Größe ± 1 µJ – ✓",
        "显卡 🔥 GPU",
        "a\u00a0b\u3000c",
        "❤️",
        r"C:\x1b",
        "é",
        "e\u0301",
        "हिन्दी",
        "עברית",
    ],
)
def test_what_can_be_seen_stays_as_it_is(text: str) -> None:
    assert shown(text) == shown_lines(text) == shown_in_json(text) == text
    assert is_plain(text)


def test_of_several_lines_the_ends_and_tabs_stay() -> None:
    assert shown_lines("a\n\tb\r\n\x1b\u2028c\n") == "a\n\tb\\r\n\\x1b\\u2028c\n"


@pytest.mark.slow
def test_every_character_is_shown_or_seen() -> None:
    for one in map(chr, range(sys.maxunicode + 1)):
        is_hidden = unicodedata.category(one) in HIDDEN
        assert not (is_hidden and shown(one) == one), ascii(one)
        assert shown(one) == one or shown(one).isascii(), ascii(one)


@given(text=ANYTHING)
def test_nothing_hidden_is_left_and_showing_twice_changes_nothing(text: str) -> None:
    once = shown(text)
    assert not {unicodedata.category(one) for one in once} & HIDDEN
    assert "\n" not in once
    assert shown(once) == once
    assert shown_lines(text).count("\n") == text.count("\n")


@given(text=ANYTHING)
def test_programs_read_the_same_from_json(text: str) -> None:
    written = shown_in_json(json.dumps([text], ensure_ascii=False))
    assert json.loads(written) == [text]
    assert is_plain(written)


FORMULAS = ["=1+1", "+1+1", "-2+3+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\n=1", " =1", "＝1+1", "=", "-", "'=1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_what_begins_as_a_formula_does_is_text_in_a_spreadsheet(text: str) -> None:
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", [-1, -1.5, 0, True, None, "-2", "+1e-3", "-Infinity", "-inf", "a=b", "it's", ""])
def test_numbers_and_plain_text_are_cells_as_they_are(value: object) -> None:
    assert csv_cell(value) == value


def test_hidden_characters_of_a_cell_are_shown() -> None:
    assert csv_cell("\r=1\x1b") == "\\r=1\\x1b"


@given(cells=st.lists(st.text(st.characters(categories=["L", "N", "P", "S"]) | st.sampled_from("\n\t '=+-@,;\""))))
def test_a_program_gets_every_cell_back(cells: list[str]) -> None:
    cells = [shown_lines(cell) for cell in cells]
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([csv_cell(cell)] for cell in ["heading", *cells])
    _, *rows = csv.reader(io.StringIO(stream.getvalue(), newline=""))
    assert [text_of_cell(row[0]) if row else "" for row in rows] == cells
    for row in rows:
        assert not row or row[0].lstrip(" ")[:1] not in "=+-@\t\n" or is_number(row[0])


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return not text.strip()
    return True


def test_the_text_of_an_error_of_ours_is_one_line_without_hidden_characters() -> None:
    assert str(Rejected("it said: \x1b[2J\nall is well")) == r"it said: \x1b[2J\nall is well"
    assert str(BsoError("a\u202eb")) == r"a\u202eb"
