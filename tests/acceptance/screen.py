"""A terminal of a given width around a command: what stands on its screen at the end, and which lines were too long."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_HEIGHT = 50
_PIECES = re.compile(r"\x1b\[(?P<numbers>[\d;?]*)(?P<control>[A-Za-z])|\x1b.|(?P<text>[^\x1b\r\n]+)|(?P<end>[\r\n])")
_CONTROLS_WITHOUT_EFFECT_ON_TEXT = "hl"  # the cursor shown and hidden


@dataclass
class Screen:
    """Interprets what rich sends: text, ends of lines, the cursor up, a line erased.

    ``too_long`` holds lines that reached beyond the last column, which a terminal breaks wherever they happen to be;
    ``styles`` the numbers of all colours and other styles.
    """

    width: int
    lines: list[str] = field(default_factory=lambda: [""])
    too_long: list[str] = field(default_factory=list)
    styles: set[str] = field(default_factory=set)
    _row: int = 0
    _column: int = 0

    def feed(self, printed: str) -> None:
        for piece in _PIECES.finditer(printed):
            if piece["text"] is not None:
                self._write(piece["text"])
            elif piece["end"] == "\r":
                self._column = 0
            elif piece["end"] == "\n":
                self._row += 1
                self.lines += [""] * (self._row + 1 - len(self.lines))
            elif piece["control"] is not None:
                self._control(piece["control"], piece["numbers"])

    def _write(self, text: str) -> None:
        line = self.lines[self._row].ljust(self._column)
        self.lines[self._row] = line[: self._column] + text + line[self._column + len(text) :]
        self._column += len(text)
        if self._column > self.width:
            self.too_long.append(self.lines[self._row])

    def _control(self, control: str, numbers: str) -> None:
        if control == "m":
            self.styles |= set(numbers.split(";"))
        elif control == "A":
            self._row = max(0, self._row - int(numbers or 1))
        elif control == "K":
            self.lines[self._row] = ""
        else:
            assert control in _CONTROLS_WITHOUT_EFFECT_ON_TEXT, f"the screen does not know control {control!r}"

    @property
    def text(self) -> str:
        """What stands there, without blanks at the ends of lines."""
        return "\n".join(line.rstrip() for line in self.lines).rstrip() + "\n"


def run_in_terminal(command: Sequence[str], environment: Mapping[str, str], *, width: int) -> tuple[int, Screen]:
    """Run a command to its end in a terminal of so many columns; its exit code, and the screen."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _HEIGHT, width, 0, 0))
    process = subprocess.Popen(
        command,
        env={**environment, "TERM": "xterm-256color"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    printed = b"".join(iter(lambda: _read(master), b""))
    os.close(master)
    screen = Screen(width)
    screen.feed(printed.decode())
    return process.wait(), screen


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # on Linux the end of what was started there
        return b""
