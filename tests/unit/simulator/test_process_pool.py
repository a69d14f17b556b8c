"""Calls that run in other processes, and are given up."""

import struct
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from bso.simulator.process_pool import spread
from tests.servers import eventually


class GivenUp(Exception):
    """The caller wants no more results."""


def at_once() -> str:
    return "first"


def half_a_result(may_begin: Path, has_begun: Path) -> str:
    """Announce a result to the pool, and never hand it over: as a process that is ended in the middle of it."""
    eventually(may_begin.exists)
    results = sys._getframe(1).f_locals["result_queue"]
    results._writer._send(struct.pack("!i", 1000))
    has_begun.touch()
    threading.Event().wait()
    return ""


def test_a_process_that_is_ended_while_it_hands_over_its_result_holds_nobody_up(tmp_path: Path) -> None:
    may_begin, has_begun = tmp_path / "may begin", tmp_path / "has begun"

    def give_up(result: str) -> None:
        may_begin.touch()
        eventually(has_begun.exists)
        raise GivenUp(result)

    with pytest.raises(GivenUp, match="first"):
        spread([at_once, partial(half_a_result, may_begin, has_begun)], processes=2, on_done=give_up)
