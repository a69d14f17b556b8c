"""The process that simulates for a page."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bso_gateway.http import HttpError
from bso_gateway.pages.what_if import Question, answer_to, question_in
from tests.servers import eventually_async

QUESTION = Question(job_id="job", eta_knob=0.2)


@dataclass(frozen=True, slots=True)
class Endless:
    """A simulation that never ends, and the file to which it writes its process id."""

    program: Sequence[str]
    process_id: Path


@pytest.fixture
def endless(tmp_path: Path) -> Endless:
    """In place of the simulation."""
    file = tmp_path / "pid"
    return Endless(("sh", "-c", f"echo $$ > {file}.new && mv {file}.new {file} && exec sleep 1000"), file)


def is_gone(process_id: Path) -> bool:
    """Whether the process has ended."""
    try:
        os.kill(int(process_id.read_text()), 0)
    except ProcessLookupError:
        return True
    return False


async def test_it_ends_when_nobody_waits_for_its_answer(endless: Endless) -> None:
    answering = asyncio.create_task(answer_to(QUESTION, (), program=endless.program))
    await eventually_async(endless.process_id.exists, what="the process")
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert is_gone(endless.process_id)


async def test_it_ends_at_its_limit(endless: Endless) -> None:
    with pytest.raises(HttpError, match="did not end within 1 s"):
        await answer_to(QUESTION, (), program=endless.program, limit_s=1.0)
    assert is_gone(endless.process_id)


async def test_a_file_beside_a_script_is_not_taken_for_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "statistics.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HttpError) as refused:
        await answer_to(QUESTION, ())
    assert (refused.value.kind, refused.value.status) == ("not_answered", 422)


async def test_a_log_that_cannot_be_read_is_refused_and_a_crash_is_an_error_of_the_server() -> None:
    with pytest.raises(HttpError) as refused:
        await answer_to(QUESTION, ["no event"])
    assert (refused.value.kind, refused.value.status) == ("not_answered", 422)
    with pytest.raises(HttpError) as failed:
        await answer_to(QUESTION, (), program=("sh", "-c", "exit 3"))
    assert failed.value.status == 500


@pytest.mark.parametrize("eta", ["nan", "inf", "-0.1", "1.1", "much", "0x1", "0" * 5000 + "2"])
def test_an_eta_is_a_number_from_0_to_1(eta: str) -> None:
    with pytest.raises(HttpError, match="eta must be a number from 0 to 1"):
        question_in("job", {"eta": eta})


def test_without_anything_to_change_nothing_is_asked() -> None:
    assert question_in("job", {"policy": "", "eta": " ", "hardware": "any"}) is None
    assert question_in("job", {"policy": "curve"}) == Question(job_id="job", policy="curve")
