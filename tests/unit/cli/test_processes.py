"""Knowing a launched process again."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bso.cli.recurring.processes import signing_in, still_running, this_machine
from tests.servers import PATIENCE_S


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    return tmp_path / "process"


@pytest.fixture
def child(signed: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that signs in before it becomes `cat`, and ends with its input."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, preexec_fn=signing_in(signed))  # noqa: PLW1509
    yield process
    process.kill()
    process.communicate()


def test_a_process_is_known_before_its_launcher_knows_that_it_runs(
    signed: Path, child: subprocess.Popen[bytes]
) -> None:
    found = still_running(signed)
    assert found is not None
    assert found.pid == child.pid


def test_its_end_is_seen_even_before_anybody_collects_it(signed: Path, child: subprocess.Popen[bytes]) -> None:
    orphan = still_running(signed)
    assert orphan is not None
    assert child.stdin is not None
    child.stdin.close()
    asyncio.run(asyncio.wait_for(orphan.wait(), PATIENCE_S))
    assert still_running(signed) is None


def test_another_process_with_its_number_is_not_it(signed: Path, child: subprocess.Popen[bytes]) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("without /proc, a number is all that is known of a process")
    machine, pid, started = signed.read_text().splitlines()
    signed.write_text(f"{machine}\n{pid}\n{int(started) - 1}\n")
    assert still_running(signed) is None


def test_a_process_of_another_machine_cannot_be_followed(signed: Path, child: subprocess.Popen[bytes]) -> None:
    signed.write_text(signed.read_text().replace(this_machine(), "elsewhere"))
    assert still_running(signed) is None


@pytest.mark.parametrize("left", [None, "", "half"])
def test_where_nobody_signed_in_nobody_runs(signed: Path, left: str | None) -> None:
    if left is not None:
        signed.write_text(left)
    assert still_running(signed) is None
