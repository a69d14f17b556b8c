r"""Text from outside, made safe for where it goes: a terminal, a log, a page, a spreadsheet.

A character is *hidden* if a terminal or a page obeys it, or draws nothing for it: control characters, those that turn
the direction of text around or have no width, ends of lines and paragraphs, lone surrogates, code points without a
character. It is shown as Python writes it in a string: ``\x1b``, ``\u202e``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\uffa0\U000e0100-\U000e01ef]")
"""What Python calls printable, and fonts draw as nothing (Default_Ignorable_Code_Point of Unicode); a variation of an
emoji (U+FE0F) may stay."""
_BEGINS_FORMULAS = "=+-@\t\r\n＝＋－＠"  # the last four have full width: spreadsheets take them, too
_MARK = "'"  # a spreadsheet reads a cell that begins with it as text


def shown(text: str) -> str:
    """Text in one line, with all hidden characters shown, ends of lines included."""
    return text if _is_printable(text) else _replaced(text, _escaped)


def shown_lines(text: str) -> str:
    """Text of several lines with all other hidden characters shown: line feeds and tabs stay."""
    return "\n".join("\t".join(map(shown, line.split("\t"))) for line in text.split("\n"))


def shown_in_json(text: str) -> str:
    """JSON with the hidden characters in its strings escaped as JSON does: for programs it is the same."""
    return text if _is_printable(text) else _replaced(text, _escaped_in_json)


def is_plain(text: str) -> bool:
    """Whether text holds no hidden character."""
    return shown(text) == text


def csv_cell(value: object) -> object:
    """A value as a cell of a CSV file that no spreadsheet takes for a formula: `text_of_cell` undoes it.

    Text that begins as a formula does, and is no number, has an apostrophe before it, and so has text that begins with
    one. Hidden characters are shown for good, but for line feeds and tabs.
    """
    if not isinstance(value, str):
        return value
    text = shown_lines(value)
    begins = text.lstrip(" ")[:1]
    is_formula = begins != "" and begins in _BEGINS_FORMULAS and not _is_number(text)
    return _MARK + text if is_formula or text.startswith(_MARK) else text


def text_of_cell(cell: str) -> str:
    """The text that `csv_cell` has written into a cell."""
    return cell.removeprefix(_MARK)


def _is_printable(text: str) -> bool:
    return text.isprintable() and not _BLANK.search(text)


def _replaced(text: str, escaped: Callable[[str], str]) -> str:
    return "".join(escaped(one) if _is_hidden(one) else one for one in text)


def _is_hidden(character: str) -> bool:
    """Spaces of any width are none: Python does not call them printable."""
    return not _is_printable(character) and unicodedata.category(character) != "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _escaped_in_json(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
