"""Temporary folders that are removed even if the process that used them was killed: by the next one that needs one."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import lock_descriptor

_PREFIX = "bso-replay-"
_YOUNG_S = 60.0  # a folder that is not locked yet may have been made a moment ago


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder in ``TMPDIR``, removed in the end; before, what killed processes of the same user have left there.

    The kernel knows which those are: a process that uses a folder holds a lock on it, which ends with the process.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, or another process removes it
            _remove_if_left(left)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, _locked(Path(name)):
        yield Path(name)


def _remove_if_left(folder: Path) -> None:
    status = folder.lstat()
    if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_S:
        return
    with _locked(folder):
        shutil.rmtree(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock on a folder. Raises BlockingIOError where another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not lock_descriptor(descriptor, blocking=False):
            raise BlockingIOError(f"{folder} is in use")
        yield
    finally:
        os.close(descriptor)
