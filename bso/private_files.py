"""Files that only their owner may read: state of trainings. What exists already keeps the rights that it has."""

from __future__ import annotations

import os
from pathlib import Path

FILE_MODE, FOLDER_MODE = 0o600, 0o700
_OF_OTHERS = 0o077


def make_folders(folder: Path) -> None:
    """Make a folder and those above it that are missing, for their owner alone. Raises OSError."""
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir(mode=FOLDER_MODE, exist_ok=True)
    folder.mkdir(exist_ok=True)  # raises where something else has its name


def make_file(path: Path) -> None:
    """Make an empty file for its owner alone, unless there is one. Raises OSError."""
    os.close(opener(str(path), os.O_RDWR | os.O_CREAT))


def opener(path: str, flags: int) -> int:
    """For ``open``: what it makes is its owner's alone."""
    return os.open(path, flags, FILE_MODE)


def rights_of_others(path: Path) -> str | None:
    """The mode of a file or folder that others than its owner may use, as chmod takes it; None: nobody else may."""
    mode = path.stat().st_mode & 0o777
    return f"{mode:o}" if mode & _OF_OTHERS else None
