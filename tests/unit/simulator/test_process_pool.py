"""Calls that run in other processes, and are given up."""

import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from bso.simulator.process_pool import spread
from tests.servers import eventually


class GivenUp(Exception):
    """The caller wants no more results."""


def at_once() -> str:
    return "first"


def waiting_for(path: Path, result: str) -> str:
    eventually(path.exists)
    return result


def touching(path: Path, result: str) -> str:
    path.touch()
    return result


def half_a_result(may_begin: Path, has_begun: Path) -> str:
    """Announce a result, and never hand it over: as a process that is ended in the middle of it."""
    eventually(may_begin.exists)
    pipe = sys._getframe(1).f_locals["pipe"]
    os.write(pipe.fileno(), struct.pack("!i", 1000))
    has_begun.touch()
    threading.Event().wait()
    return ""


def orphaned(parent: int) -> str:
    """A result that comes when nobody is left to take it."""
    eventually(lambda: os.getppid() != parent)
    return "late"


def ended(_: str) -> None:
    """End this process as SIGKILL does."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def failing() -> str:
    raise GivenUp("in the other process")


def test_a_process_that_is_ended_while_it_hands_over_its_result_holds_nobody_up(tmp_path: Path) -> None:
    may_begin, has_begun = tmp_path / "may begin", tmp_path / "has begun"

    def give_up(result: str) -> None:
        may_begin.touch()
        eventually(has_begun.exists)
        raise GivenUp(result)

    with pytest.raises(GivenUp, match="first"):
        spread([at_once, partial(half_a_result, may_begin, has_begun)], processes=2, on_done=give_up)


def test_processes_whose_caller_was_ended_end_without_a_traceback() -> None:
    """They hold standard error open: its end is theirs."""
    asked = "spread([at_once, partial(orphaned, os.getpid())], processes=2, on_done=ended)"
    words = f"import os; from {__name__} import *; {asked}"
    caller = subprocess.run([sys.executable, "-c", words], stderr=subprocess.PIPE, check=False)
    assert caller.returncode == -signal.SIGKILL
    assert b"Traceback" not in caller.stderr


def test_results_come_in_the_order_of_the_calls_and_are_reported_as_they_come(tmp_path: Path) -> None:
    reported: list[str] = []
    calls: list[Callable[[], str]] = [
        partial(waiting_for, tmp_path / "2", "first"),
        partial(touching, tmp_path / "2", "second"),
        at_once,
    ]
    assert spread(calls, processes=2, on_done=reported.append) == ["first", "second", "first"]
    assert reported.index("second") == 0


def test_an_error_of_a_call_is_raised_with_its_traceback() -> None:
    with pytest.raises(GivenUp, match="in the other process") as raised:
        spread([failing, failing], processes=2, on_done=lambda _: None)
    assert "in failing" in raised.value.__notes__[0]


def test_a_process_that_is_killed_is_an_error() -> None:
    with pytest.raises(ChildProcessError, match="ended from outside"):
        spread([killed, killed], processes=2, on_done=lambda _: None)
