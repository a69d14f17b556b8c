"""Files that only their owner may read: state of trainings. What exists already keeps the rights that it has."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

FILE_MODE, FOLDER_MODE = 0o600, 0o700
_OF_OTHERS = 0o077


def make_folders(folder: Path) -> None:
    """Make a folder and those above it that are missing, for their owner alone. Raises OSError."""
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir(mode=FOLDER_MODE, exist_ok=True)
    folder.mkdir(exist_ok=True)  # raises where something else has its name


def make_file(path: Path) -> None:
    """Make an empty file for its owner alone, unless there is one. Raises OSError.

    One that exists is not even opened: closing it would lift the locks that SQLite holds on it in this process, and
    another process would then remove a log that is in use (sqlite.org/howtocorrupt.html, section 2.2).
    """
    with suppress(FileExistsError):
        os.close(opener(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL))


def opener(path: str, flags: int) -> int:
    """For ``open``: what it makes is its owner's alone."""
    return os.open(path, flags, FILE_MODE)


def denial(path: Path) -> str | None:
    """Why this process may not use a file and the folder that it is in, or make them; None: it may."""
    if os.name != "posix":
        return None
    existing = [each for each in (path, *path.parents) if os.path.exists(each)]  # noqa: PTH110  # Path's may raise
    for found in existing[: 2 if existing[0] == path else 1]:
        if os.statvfs(found).f_flag & os.ST_RDONLY:
            return f"{found} is on a read-only file system"
        if not os.access(found, os.R_OK | os.W_OK | (os.X_OK if found.is_dir() else 0)):
            it, own = found.stat(), _user(os.geteuid())
            owner = f"{_user(it.st_uid)} (mode {it.st_mode & 0o777:o})"
            return f"no permission to read and write {found}: it belongs to {owner}, and this process runs as {own}"
    return None


def _user(number: int) -> str:
    import pwd  # not on every platform

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def rights_of_others(path: Path) -> str | None:
    """The mode of a file or folder that others than its owner may use, as chmod takes it; None: nobody else may."""
    mode = path.stat().st_mode & 0o777
    return f"{mode:o}" if mode & _OF_OTHERS else None
