"""The process that restores the power limits of a training that has ended without doing so itself.

A SIGKILL leaves a training no last words: this process sees the end of its pipe, or of the training, and restores. It
ignores the signals that its training gets, and is a session of its own.

One file per GPU and machine says who may set the GPU's power limit, and what the limit was before. The lock is an
flock, which the training shares with this process: the kernel lifts it when both have ended, however they did. The
record in the file outlives them: the next training restores what they could not.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from bso_client.energy.nvml import Nvml, NvmlError

_STDIN, _STDERR = 0, 2
_PARENT_CHECK_S = 0.25  # how soon the end of the training is noticed where its children keep the pipe open
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
        self.descriptor = os.open(folder / f"bso-power-limit-{uuid}.lock", flags, 0o644)
        try:
            self._take()
        except BaseException:
            os.close(self.descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> None:
        from filelock import lock_descriptor  # imported where limits are set: most trainings set none

        if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):
            raise OSError(f"the lock {self.descriptor} is no plain file")
        if not lock_descriptor(self.descriptor, blocking=False):
            raise LimitTaken(f"process {self._read().get('pid', 'unknown')}")

    def left_behind(self) -> LimitRecord | None:
        """The record of a holder that could not restore the limit; None if there is none that can be trusted.

        Trusted is what root or this user wrote, and nobody else could have changed.
        """
        status = os.fstat(self.descriptor)
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
        size = os.fstat(self.descriptor).st_size
        os.pwrite(self.descriptor, text.ljust(size), 0)  # blanks hide what a longer record leaves
        os.ftruncate(self.descriptor, len(text))

    def forget(self) -> None:
        """The limit is restored: nothing is left behind."""
        os.ftruncate(self.descriptor, 0)

    def release(self) -> None:
        """Let others take it, also where the guard or forked children still have the file open."""
        _unlock(self.descriptor)

    def close(self) -> None:
        """Let go of the file, and of the lock unless others hold it, too."""
        os.close(self.descriptor)

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(os.pread(self.descriptor, _MOST_BYTES, 0))
        except ValueError:
            return {}
        return data if isinstance(data, dict) else {}


def main(arguments: Sequence[str]) -> int:
    """Wait for the end of the training, and restore its limits.

    The arguments are the training's process id, and in JSON by UUID the open lock file of each GPU and its limit [W].
    The training ends when stdin does, or its process, whose children may hold stdin open.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    parent, guarded = int(arguments[0]), json.loads(arguments[1])
    while os.getppid() == parent and not select.select([_STDIN], [], [], _PARENT_CHECK_S)[0]:
        pass
    return max([_restored(uuid, *lock_and_limit) for uuid, lock_and_limit in guarded.items()])


def _restored(uuid: str, descriptor: int, limit_w: float) -> int:
    try:
        with Nvml() as nvml:
            for gpu in nvml.visible_gpus(uuid):
                gpu.set_power_limit_w(limit_w)
                os.ftruncate(descriptor, 0)
    except (NvmlError, OSError) as error:
        with contextlib.suppress(OSError):  # nobody reads it any more
            os.write(_STDERR, f"bso: a power limit could not be restored: {error}\n".encode())
        return 1
    finally:
        _unlock(descriptor)
    return 0


def _unlock(descriptor: int) -> None:
    from filelock import unlock_descriptor

    unlock_descriptor(descriptor)
