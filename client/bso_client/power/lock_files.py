"""One file per GPU and machine: who may set its power limit, and what it was before.

The lock is an flock, which the kernel lifts however its holder ends. What the file says outlives even a holder that was
killed before it could restore the limit: the next one restores it.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

_FOLDERS = (Path("/run/lock"), Path("/var/lock"))
_MOST_BYTES = 100_000
_SAME_W = 0.5  # limits closer than this are the same


class LimitTaken(Exception):
    """Another process sets the power limit of this GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRecord:
    """A GPU's power limit [W] before anything was set, and what was set since, in this boot: a reboot resets it."""

    original_w: float
    set_w: tuple[float, ...] = ()
    boot_id: str = ""

    def explains(self, current_w: float, boot_id: str) -> bool:
        """Whether the current limit is one that the holder of this record has left behind."""
        is_ours = any(abs(current_w - limit_w) < _SAME_W for limit_w in self.set_w)
        return boot_id == self.boot_id and is_ours


class LockFile:
    """The lock of one GPU's power limit, and its record. Raises LimitTaken, and OSError where no file can be kept."""

    def __init__(self, folder: Path, uuid: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        self._fd = os.open(folder / f"bso-power-limit-{uuid}.lock", flags, 0o644)
        try:
            self._take()
        except BaseException:
            os.close(self._fd)
            raise

    def _take(self) -> None:
        import fcntl

        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise OSError(f"the lock {self._fd} is no plain file")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LimitTaken(f"process {self._read().get('pid', 'unknown')}") from error

    def left_behind(self) -> LimitRecord | None:
        """The record of a holder that could not restore the limit; None if there is none that can be trusted.

        Trusted is what root or this user wrote, and nobody else could have changed.
        """
        status = os.fstat(self._fd)
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
        data = self._read()
        try:
            return LimitRecord(
                original_w=float(data["original_w"]),
                set_w=tuple(float(limit_w) for limit_w in data["set_w"]),
                boot_id=str(data["boot_id"]),
            )
        except (KeyError, TypeError, ValueError):
            return None

    def write(self, record: LimitRecord, *, pid: int) -> None:
        """Note what is to be restored if this holder cannot do it; ``pid`` is the training's, for people."""
        text = json.dumps({"pid": pid, **asdict(record)}).encode()
        os.pwrite(self._fd, text.ljust(os.fstat(self._fd).st_size), 0)  # blanks hide what a longer record leaves
        os.ftruncate(self._fd, len(text))

    def forget(self) -> None:
        """The limit is restored: nothing is left behind."""
        os.ftruncate(self._fd, 0)

    def close(self) -> None:
        """Let others take it."""
        os.close(self._fd)

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(os.pread(self._fd, _MOST_BYTES, 0))
        except ValueError:
            return {}
        return data if isinstance(data, dict) else {}


class LockFiles:
    """The locks of several GPUs, all of them or none."""

    def __init__(self, folder: Path, uuids: Iterable[str]) -> None:
        self.by_uuid: dict[str, LockFile] = {}
        try:
            for uuid in sorted(uuids):
                self.by_uuid[uuid] = LockFile(folder, uuid)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others take them."""
        while self.by_uuid:
            self.by_uuid.popitem()[1].close()


def default_lock_folder() -> Path:
    """A folder that all users and processes of this machine share, as far as there is one."""
    for folder in _FOLDERS:
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    return Path(tempfile.gettempdir())
