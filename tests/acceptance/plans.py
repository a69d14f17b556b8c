"""Commands of ``bso`` run one after the other, in a pipe and on a terminal: what each printed, and if it is safe."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.conftest import command_in
from tests.defences.hostile_text import obeyed
from tests.defences.removals import VARIABLE

SCREENS: dict[str, dict[str, str]] = {
    "in a pipe": {},
    "on a terminal": {"TERM": "xterm-256color"},
    "on a terminal without colours": {"TERM": "dumb", "NO_COLOR": "1"},
}
_STEP = re.compile(r"\n<<(\d+)\n(.*?)\n(\d+)>>\n", re.DOTALL)


@dataclass(frozen=True)
class Ran:
    """What a command printed on both outputs."""

    words: Sequence[str]
    code: int
    said: str


def run(folder: Path, steps: Sequence[tuple[Sequence[str], Mapping[str, str]]], screen: str = "in a pipe") -> list[Ran]:
    """Run commands, each with an environment, in a folder of their own. A defence that is removed here is there."""
    plan = folder / "plan.json"
    plan.write_text(json.dumps([{"words": words, "environ": environ} for words, environ in steps]))
    command = [sys.executable, "-m", "tests.defences.hostile_commands", str(plan)]
    environment = command_in(folder / "state").environment | SCREENS[screen] | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
    printed = (_in_pipe if screen == "in a pipe" else _in_terminal)(command, environment, folder)
    plan.unlink()  # addresses are in it
    found = [(int(number), said, int(code)) for number, said, code in _STEP.findall(printed)]
    assert [number for number, _, _ in found] == list(range(len(steps))), printed[-2000:]
    return [Ran(words=steps[number][0], code=code, said=said) for number, said, code in found]


def assert_nothing_is_obeyed(ran: Sequence[Ran], screen: str = "in a pipe") -> None:
    """Nothing that a terminal would obey was printed, and no line that somebody has forged, but in cells of CSV."""
    for one in ran:
        said = one.said if "csv" not in one.words else re.sub(r'"[^"]*"', _in_one_line, one.said)
        found = obeyed(said, is_drawn=screen == "on a terminal")
        assert not found, f"{found[:3]} of {one.words!a}"


def _in_one_line(cell: re.Match[str]) -> str:
    """A cell of a CSV file, in which line feeds have their place."""
    return cell[0].replace("\n", " ")


def _in_pipe(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
    done = subprocess.run(
        command,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.stdout.decode()


def _in_terminal(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    printed = b"".join(iter(lambda: _read(master), b""))
    os.close(master)
    process.wait()
    return printed.decode().replace("\r\n", "\n")


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # on Linux the end of what was started there
        return b""
