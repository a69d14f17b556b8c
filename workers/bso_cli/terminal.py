"""What commands print: sentences for people, JSON for programs. Tables are in bso_cli.tables.

On a terminal lines end between words. In a pipe or a file a sentence, and a row of a table, is one line however long it
is, so that grep finds whole records; COLUMNS gives it a width.

Hidden characters are shown (bso.domain.foreign_text) in all output: a sentence is one line whatever is in it,
the consoles look at each text again before they colour it, and what typer and others write passes `GuardedStream`.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterable
from contextlib import redirect_stdout
from functools import cache
from typing import IO, Any, cast

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Span, Text

from bso.credentials import without_passwords
from bso.domain.foreign_text import shown, shown_lines
from bso.guarded_stream import GuardedStream

_WIDER_THAN_ANY = 100_000
_WORD = re.compile(r"\s*(?:\d\S* (?=(?:[pnµmkMGT]?[JWs]|d|h|min|x)(?:[\s,.;:)]|$)))*\S+\s*")
HANG = 4
"""By how many columns all lines but the first of a list's item are indented."""


class _Drawing:
    """The file of a console: this process' output or error output as it is now, to draw on."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def _stream(self) -> Any:
        """While something is counted, rich stands before it, and prints above the count."""
        stream = getattr(sys, self._name)
        return getattr(stream, "rich_proxied_file", stream)

    def write(self, drawn: str) -> int:
        stream = self._stream
        return int(stream.draw(drawn) if isinstance(stream, GuardedStream) else stream.write(drawn))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Console(Console):
    """Shows the hidden characters that a text still holds when it is drawn; the console's own controls pass."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else shown_lines(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


@cache
def people() -> Console:
    """Where people read results: standard output."""
    return _console("stdout")


@cache
def onlookers() -> Console:
    """Where people read progress and complaints: standard error, so that a pipe gets results alone."""
    return _console("stderr")


def print_result(words: str | Text, *, hang: int = 0) -> None:
    """Print a sentence for people."""
    print_words(words, on=people(), hang=hang)


def print_block(block: RenderableType, *, on: Console | None = None) -> None:
    """Print a table, or what else fits itself into the width, for people or on another console."""
    (on or people()).print(block, overflow="ignore", crop=False)


def print_blocks(*blocks: RenderableType) -> None:
    """Print several, each after a blank line."""
    for block in blocks:
        people().print()
        print_block(block)


def print_notice(words: str | Text, *, hang: int = 0) -> None:
    """Print a sentence for onlookers."""
    print_words(words, on=onlookers(), hang=hang)


def print_command(line: str) -> None:
    """Print a command line for onlookers, in one piece however long it is: it is there to be copied."""
    onlookers().print(in_one_line(Text(line)), soft_wrap=True)


def print_words(words: str | Text, *, on: Console, hang: int = 0) -> None:
    """Print a sentence on a console: a string as it is, ``styled`` ones in colours.

    A line feed in it can only be somebody else's, and is shown. A word that is longer than a line, as a path may be, is
    left whole.
    """
    text = in_one_line(Text(words) if isinstance(words, str) else words)
    on.print(wrapped(text, width=on.width, hang=hang), overflow="ignore", crop=False)


def print_traceback(error: BaseException) -> None:
    """Print a traceback for onlookers, in several lines. None of them begins as a line of its own does."""
    first, *rest = shown_lines("".join(traceback.format_exception(error))).splitlines()
    for line in (first, *(f"{' ' * HANG}{line}" for line in rest)):
        onlookers().print(Text(line), soft_wrap=True)


def confirm(question: str) -> None:
    """Ask on standard error whether to go on. Raises typer.Abort if not."""
    try:
        with redirect_stdout(sys.stderr):  # typer writes the last character of the question there
            agreed = typer.confirm(shown(question), err=True)
    except typer.Abort:  # the end of the input, or Ctrl-C
        onlookers().print()  # what comes next is on a line of its own
        if sys.stdin is None or not sys.stdin.isatty():
            print_notice("a script answers with --yes")
        raise
    if not agreed:
        raise typer.Abort


def styled(markup: str) -> Text:
    """Words with rich's markup in them; what comes from outside must have been escaped."""
    return Text.from_markup(markup, emoji=False)


def in_one_line(text: Text) -> Text:
    """Styled text with all hidden characters shown, ends of lines included.

    It loses its passwords before a line may end within one, and then its colours, too.
    """
    secret_less = without_passwords(text.plain)
    if secret_less != text.plain:
        text = Text(secret_less, style=text.style)
    if shown(text.plain) == text.plain:
        return text
    made = text.blank_copy()
    hidden = (at for at, one in enumerate(text.plain) if shown(one) != one)
    for piece in text.divide(cut for at in hidden for cut in (at, at + 1)):
        plain = shown(piece.plain)
        spans = [Span(0, len(plain), span.style) for span in piece.spans] if plain != piece.plain else piece.spans
        made.append_text(Text(plain, style=piece.style, spans=spans))
    return made


def wrapped(words: str | Text, *, width: int, hang: int = 0) -> Text:
    """Words with the ends of lines between them; lines after the first begin ``hang`` columns to the right."""
    text = Text(words) if isinstance(words, str) else words
    lines: list[Text] = []
    for paragraph in text.split(allow_blank=True):
        first, *rest = paragraph.divide(_ends(paragraph.plain, width, hang))
        lines += [first, *(Text(" " * hang).append_text(line) for line in rest)]
    for line in lines:
        line.rstrip()
    return Text("\n").join(lines)


def words_of(text: str) -> list[str]:
    """The words of a text; a number and its unit are one."""
    return [word[0].strip() for word in _WORD.finditer(text)]


def _ends(text: str, width: int, hang: int) -> list[int]:
    """Where lines end: before each word that would not fit any more. A number and its unit are one word."""
    ends: list[int] = []
    column = 0
    for word in _WORD.finditer(text):
        if column and column + cell_len(word[0].rstrip()) > width:
            ends.append(word.start())
            column = hang
        column += cell_len(word[0])
    return ends


def print_json(value: object) -> None:
    """One JSON object on one line; numbers that JSON lacks become the strings "NaN" and "Infinity"."""
    from bso.schema.codec import json_line

    sys.stdout.write(json_line(value) + "\n")
    sys.stdout.flush()


def print_answer(fields: object, words: str, *, as_json: bool) -> None:
    """Print what a command has done: an object for programs, or a sentence for people."""
    if as_json:
        print_json(fields)
    else:
        print_result(words)


def _console(name: str) -> Console:
    """A console as wide as COLUMNS says, else as the terminal (None: rich finds it out); elsewhere no line is too long.

    A COLUMNS that is no width counts as unset, for rich too.
    """
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if re.fullmatch(r"0*[1-9]\d{0,5}", columns, re.ASCII) else None
    if width is None and not getattr(sys, name).isatty():
        width = _WIDER_THAN_ANY
    environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return _Console(file=cast("IO[str]", _Drawing(name)), highlight=False, width=width, _environ=environ)
