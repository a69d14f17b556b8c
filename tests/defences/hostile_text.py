"""Hostile text, and what no output may hold of it."""

import re
import unicodedata

LINE = "FORGED"
"""How a line begins that hostile text would make, if its ends of lines were obeyed."""

_OBEYED = "\x1b]0;title\x07\x1b[31;5m\x1b[2J\x9b2J\x85\x08\x7f"
_UNSEEN = "\u202e\u2066\u200f\u061c\u200b\ufeff\u00ad\u3164\U000e0041"
_LINES = "".join(f"{end}{LINE}" for end in ("\n", "\r\n", "\r", "\x0b", "\u2028", "\u2029"))
_MARKUP = "[/][bold]x[/bold][link=https://a.b]x[/link]:skull:"
_MOST_BYTES = 255  # of a name in AMQP

# What a console of ours draws beside text: colours, but not that of hostile text; the cursor for what counts.
_DRAWN = re.compile(r"\x1b\[(?!31;5m)[\d;]*m|\r*\x1b\[(?:2K|\d*A)|\x1b\[\?25[hl]")
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def hostile(mark: str) -> str:
    """A text that tries everything, and begins with a mark by which it is known again. It has at most 255 bytes."""
    text = f"{mark}{_OBEYED}{_UNSEEN}{_LINES}{_MARKUP}"
    assert len(text.encode()) <= _MOST_BYTES
    return text


def obeyed(printed: str, *, is_drawn: bool = False) -> list[str]:
    """What an output holds that a terminal obeys or hides, each with what is around it; ``is_drawn``: on a terminal."""
    text = _DRAWN.sub("", printed.replace("\r\n", "\n")) if is_drawn else printed
    found = [
        repr(text[max(0, at - 60) : at + 20])
        for at, one in enumerate(text)
        if (unicodedata.category(one) in _HIDDEN or one == "\u3164") and one not in "\n\t"
    ]
    return found + [line for line in text.split("\n") if line.startswith(LINE)]
