"""Outputs of commands that obey nobody: consoles, tables, and what others write."""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text
from typer.testing import CliRunner

from bso.credentials import hide_passwords_of
from bso.guarded_stream import GuardedStream, guard_outputs
from bso_cli.main import app
from bso_cli.progress import counting
from bso_cli.tables import Table
from bso_cli.terminal import (
    confirm,
    in_one_line,
    onlookers,
    people,
    print_block,
    print_command,
    print_json,
    print_result,
    print_traceback,
    styled,
)
from tests.defences.hostile_text import hostile, obeyed

BAD = hostile("PWNED")


class Terminal(io.BytesIO):
    """Where a terminal's bytes go."""

    def isatty(self) -> bool:
        return True


@contextmanager
def outputs(file: io.BytesIO) -> Iterator[Callable[[], str]]:
    """Both outputs of this process into one file, guarded as those of the command are; what has come there."""
    with pytest.MonkeyPatch.context() as changes:  # in the test itself: pytest sets both anew after fixtures
        for name in ("stdout", "stderr"):
            changes.setattr(sys, name, io.TextIOWrapper(file, encoding="utf-8", write_through=True))
        guard_outputs()
        _forget_consoles()

        def read() -> str:
            sys.stdout.flush()
            sys.stderr.flush()
            return file.getvalue().decode()

        yield read
    _forget_consoles()


def _forget_consoles() -> None:
    people.cache_clear()
    onlookers.cache_clear()


def table() -> Table:
    made = Table(BAD, "first", BAD, "third", notes=[BAD, Text(BAD, style="dim")])
    made.add_row(BAD, Text(BAD, style="bold"), [BAD, BAD], style="green")
    return made


def broken() -> None:
    try:
        raise ValueError(BAD)
    except ValueError as error:
        print_traceback(error)


def counted() -> None:
    with counting(BAD, "events") as counter:
        counter.now(BAD)
        counter(1)


def misused() -> None:
    with pytest.raises(SystemExit):
        app([BAD])


WAYS: dict[str, Callable[[], object]] = {
    "a sentence": lambda: print_result(BAD),
    "styled words": lambda: print_result(styled("[bold]so[/]: ").append(BAD, style="red")),
    "a command line": lambda: print_command(BAD),
    "a table": lambda: print_block(table()),
    "another block": lambda: print_block(Panel(Text(BAD), title=Text(BAD))),
    "json": lambda: print_json({BAD: [BAD, {"name": BAD}]}),
    "a traceback": broken,
    "somebody's print": lambda: print(BAD.replace("\n", " ")),  # noqa: T201
    "somebody's error": lambda: sys.stderr.write(BAD.replace("\n", " ")),
    "another console": lambda: Console().print(Text(in_one_line(Text(BAD)).plain)),
    "progress": counted,
    "a usage error": misused,
}


@pytest.mark.parametrize("kind", [Terminal, io.BytesIO])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_that_is_printed_is_obeyed(way: str, kind: type[io.BytesIO]) -> None:
    with outputs(kind()) as read:
        WAYS[way]()
        said, is_terminal = read(), sys.stdout.isatty()
    if way.startswith("somebody") and is_terminal:
        said = said.replace("\x1b[31;5m", "")  # a colour, at most
    assert obeyed(said, is_drawn=is_terminal) == []
    assert r"\x1b[2K" not in said, "the console's own controls are shown, too"
    assert "\x1b[1A\x1b[2K\x1b[1A" not in said, "what counts takes more than one line"
    assert "PWNED" in said or (way == "progress" and not is_terminal)


def test_colours_of_ours_stay() -> None:
    words = styled("[bold red]so[/]: ").append("a\x1b[2Jb", style="green")
    with outputs(Terminal()) as read:
        print_result(words)
        assert read() == "\x1b[1;31mso\x1b[0m: \x1b[32ma\x1b[0m\x1b[32m\\x1b\x1b[0m\x1b[32m[2Jb\x1b[0m\n"
    with outputs(io.BytesIO()) as read:
        print_result(words)
        assert read() == "so: a\\x1b[2Jb\n"


def test_no_line_ends_within_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    hide_passwords_of("mysql://me:Zq9%20win%20ter%20Kp%20of%20many%20words@host/")
    words = "refused, with the password Zq9 win ter Kp of many words"
    with outputs(io.BytesIO()) as read:
        print_result(words)
        table = Table(words, "one", "two", flexible=["two"], notes=[words])
        table.add_row("1", words)
        print_block(table)
        assert " ".join(read().split()).count("password ***") == 4
        assert "Zq9" not in read()


def test_outputs_that_are_closed_take_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    guard_outputs()
    _forget_consoles()
    with closing(sys.stdout), closing(sys.stderr):
        print_result("a")
        print_json({})
        broken()
        assert [sys.stdout.name, sys.stderr.name] == [os.devnull] * 2
    _forget_consoles()


def test_what_a_string_says_is_no_markup() -> None:
    written = ("[bold]title[/]", "[red]heading[/]", "[/] :skull: [bold]cell[/bold]", "[link=https://a.b]note[/]")
    title, heading, cell, note = written
    made = Table(title, heading, notes=[note])
    made.add_row(cell)
    with outputs(io.BytesIO()) as read:
        print_block(made)
        assert [words for words in written if words not in read()] == []


def test_words_with_markup_have_no_pictures() -> None:
    assert styled("[bold]:skull:[/]").plain == ":skull:"


def test_a_question_is_one_line() -> None:
    asking = typer.Typer()
    asking.command()(lambda: confirm(f"Delete {BAD}?"))
    assert obeyed(CliRunner().invoke(asking, input="n\n").output) == []


@pytest.mark.parametrize("typed", ["y\n", "n\n", ""])
def test_a_question_leaves_the_output_to_results(typed: str) -> None:
    asking = typer.Typer()
    asking.command()(lambda: confirm("Delete it?"))
    assert CliRunner().invoke(asking, input=typed).stdout == ""


def test_who_does_not_answer_reads_on_the_next_line_what_a_script_does() -> None:
    asked = [sys.executable, "-c", "from bso_cli.terminal import confirm; confirm('Delete it?')"]
    done = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.stderr.startswith("Delete it? [y/N]: \na script answers with --yes\n")


def test_a_stream_without_a_file_below_it_stays_as_it_is() -> None:
    stream = io.StringIO()
    assert GuardedStream.around(stream) is stream


def test_what_cannot_be_encoded_is_shown_too() -> None:
    file = io.BytesIO()
    stream = GuardedStream.around(io.TextIOWrapper(file, encoding="ascii"))
    stream.write("a – b\udcff\n")
    stream.flush()
    assert file.getvalue() == b"a \\u2013 b\\udcff\n"


def test_a_guarded_stream_is_the_same_otherwise() -> None:
    file = io.BytesIO()
    stream = GuardedStream.around(io.TextIOWrapper(file, encoding="utf-8", line_buffering=True))
    hide_passwords_of("amqp://me:Zq9-winter@host/")
    assert stream.write("é Zq9-winter\n") == len("é Zq9-winter\n")
    stream.writelines(["a Zq9-winter", "\n"])
    print("Zq9-winter", "%5Aq9-winter", file=stream)
    assert file.getvalue().decode() == "é ***\na ***\n*** %5Aq9-winter\n"
    assert GuardedStream.around(stream) is stream
