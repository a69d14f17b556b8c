"""The outputs of a process of bso: every write to them hides passwords and shows hidden characters."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path
from typing import TextIO

from typing_extensions import override

from bso.credentials import without_passwords
from bso.domain.foreign_text import shown_lines

_COLOURS = re.compile(r"(\x1b\[[\d;]*m)")


class GuardedStream(io.TextIOWrapper):
    """An output that shows hidden characters, and no password. Ends of lines, tabs, and a terminal's colours stay."""

    before: TextIO
    """The stream over the same file, which would close it if nobody held it any more."""

    @classmethod
    def around(cls, stream: TextIO) -> TextIO:
        """A guarded one over the same file; one without a file below it stays as it is."""
        if isinstance(stream, cls) or not isinstance(stream, io.TextIOWrapper):
            return stream
        stream.flush()
        made = cls(
            stream.buffer,
            encoding=stream.encoding,
            errors="backslashreplace",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        made.before = stream
        return made

    @override
    def write(self, text: str, /) -> int:
        """Write text of whatever origin."""
        secret_less = without_passwords(text)
        kept = _COLOURS.split(secret_less) if self.isatty() else [secret_less]
        super().write("".join(one if at % 2 else shown_lines(one) for at, one in enumerate(kept)))
        return len(text)

    def draw(self, drawn: str) -> int:
        """Write what a console has drawn: it may also move the cursor."""
        return super().write(without_passwords(drawn))


def guard_outputs() -> None:
    """Show hidden characters, and no password, in everything that this process writes to its outputs.

    An output that is closed gets a place where nothing is kept: programs started here must not get another file as it.
    """
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    sys.stdout, sys.stderr = GuardedStream.around(sys.stdout), GuardedStream.around(sys.stderr)


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")
