"""Temporary folders: gone in the end, gone after a kill, and never taken from a process that lives."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bso_cli.replaying.sources import scratch_folder
from tests.servers import PATIENCE_S

HOLDER = """
import sys
from bso_cli.replaying.sources import scratch_folder
with scratch_folder() as folder:
    (folder / "log.sqlite").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for temporary files that holds nothing else."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@contextmanager
def held_by_another_process() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that uses such a folder, which was made an hour ago."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        make_old(folder)
        yield process, folder


def make_old(folder: Path) -> None:
    moment_s = folder.stat().st_mtime - 3600.0
    os.utime(folder, (moment_s, moment_s))


def test_a_folder_is_gone_in_the_end(temporary: Path) -> None:
    with scratch_folder() as folder:
        (folder / "log.sqlite").touch()
        assert list(temporary.iterdir()) == [folder]
    assert not list(temporary.iterdir())


def test_what_a_killed_process_has_left_is_removed_by_the_next_one(temporary: Path) -> None:
    with held_by_another_process() as (process, folder):
        process.kill()
        process.wait(timeout=PATIENCE_S)
        assert (folder / "log.sqlite").exists()
        with scratch_folder() as mine:
            assert list(temporary.iterdir()) == [mine]


def test_the_folder_of_a_living_process_stays(temporary: Path) -> None:
    with held_by_another_process() as (process, folder):
        with scratch_folder() as mine:
            assert sorted(temporary.iterdir()) == sorted([folder, mine])
        assert (folder / "log.sqlite").exists()
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    assert not list(temporary.iterdir())


def test_a_folder_that_was_just_made_stays_although_nobody_holds_it_yet(temporary: Path) -> None:
    young, old = temporary / "bso-replay-young", temporary / "bso-replay-old"
    for folder in (young, old):
        folder.mkdir()
    make_old(old)
    with scratch_folder():
        assert young.exists()
        assert not old.exists()


def test_links_and_files_of_others_are_left_alone(temporary: Path) -> None:
    kept = temporary / "kept"
    kept.mkdir()
    (kept / "file").touch()
    link = temporary / "bso-replay-link"
    link.symlink_to(kept)
    os.utime(link, (0, 0), follow_symlinks=False)
    with scratch_folder():
        pass
    assert (kept / "file").exists()
    assert link.is_symlink()
