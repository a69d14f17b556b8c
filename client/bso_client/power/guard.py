"""The process that sets power limits for a training, and restores them when the training has ended, however it did.

A SIGKILL leaves a training no last words: this process sees the end of its pipe, or of the training, and restores. It
ignores the signals that its training gets, and is a session of its own.

One file per GPU and machine says who may set the GPU's power limit, and what the limit was before. The lock is an
flock, which the kernel lifts however its holder ends. The record in the file outlives even a holder that was killed
before it could restore the limit: the next one restores it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from filelock import lock_descriptor

from bso_client.energy.nvml import Gpu, Nvml, NvmlError
from bso_client.processes import boot_id

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
        self._fd = os.open(folder / f"bso-power-limit-{uuid}.lock", flags, 0o644)
        try:
            self._take()
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> None:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise OSError(f"the lock {self._fd} is no plain file")
        if not lock_descriptor(self._fd, blocking=False):
            raise LimitTaken(f"process {self._read().get('pid', 'unknown')}")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardAnswer:
    """How a request went. ``code`` is NVML's own where it refused. ``found_w``: the limits [W] to restore, by UUID."""

    problem: str = ""
    code: int = 0
    found_w: Mapping[str, float] = field(default_factory=dict)


class GuardedGpu:
    """One GPU whose power limit is set here and nowhere else."""

    def __init__(self, gpu: Gpu, lock: LockFile, *, parent: int) -> None:
        self.uuid = gpu.uuid
        self._gpu, self._lock, self._parent = gpu, lock, parent
        current_w, boot = gpu.power_limit_w, boot_id()
        left = lock.left_behind()
        is_leftover = left is not None and left.explains(current_w, boot)
        original_w = left.original_w if left is not None and is_leftover else current_w
        self._record = LimitRecord(original_w=original_w, set_w=(current_w,) if is_leftover else (), boot_id=boot)
        gpu.set_power_limit_w(current_w)  # changes nothing, and shows whether limits may be set

    @property
    def found_w(self) -> float:
        """The limit [W] to restore."""
        return self._record.original_w

    def set(self, limit_w: float) -> None:
        """Set the limit [W]; noted before it is done."""
        if limit_w not in self._record.set_w:
            self._record = replace(self._record, set_w=(*self._record.set_w, limit_w))
            self._lock.write(self._record, pid=self._parent)
        self._gpu.set_power_limit_w(limit_w)

    def restore(self) -> None:
        """Set what was found at the beginning."""
        if self._record.set_w:
            self._gpu.set_power_limit_w(self._record.original_w)
            self._lock.forget()


def main(arguments: Sequence[str]) -> int:
    """Guard until the training ends.

    The arguments are the training's process id, the folder of the locks, and the UUIDs of the GPUs. Over stdin, which
    is a connection of multiprocessing, it sends one answer to its start, and one to each limit [W] that it receives,
    all in JSON; null ends it.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    parent, folder, uuids = int(arguments[0]), Path(arguments[1]), arguments[2:]
    pipe = Connection(_STDIN)
    try:
        with contextlib.ExitStack() as held:
            locks = {uuid: held.enter_context(LockFile(folder, uuid)) for uuid in sorted(uuids)}
            return _guard(pipe, held.enter_context(Nvml()), locks, uuids, parent=parent)
    except NvmlError as error:
        _answer(pipe, GuardAnswer(problem=str(error), code=error.code))
    except LimitTaken as error:
        _answer(pipe, GuardAnswer(problem=f"{error} sets the power limit of the same GPU already"))
    except OSError as error:
        _answer(pipe, GuardAnswer(problem=f"no lock can be kept in {folder}: {error}"))
    return 1


def _guard(pipe: Connection, nvml: Nvml, locks: Mapping[str, LockFile], uuids: Sequence[str], *, parent: int) -> int:
    found = nvml.visible_gpus(",".join(uuids))
    if len(found) < len(uuids):
        _answer(pipe, GuardAnswer(problem=f"of the GPUs {', '.join(uuids)} only {len(found)} are there"))
        return 1
    gpus = [GuardedGpu(gpu, locks[gpu.uuid], parent=parent) for gpu in found]
    _answer(pipe, GuardAnswer(found_w={gpu.uuid: gpu.found_w for gpu in gpus}))
    for limit_w in _limits(pipe, parent):
        _answer(pipe, _set(gpus, limit_w))
    return _restored(gpus)


def _limits(pipe: Connection, parent: int) -> Iterator[float]:
    """The limits [W] to set, until null or the end of the pipe or of the parent, whose children may hold it open."""
    while os.getppid() == parent:
        try:
            if not pipe.poll(_PARENT_CHECK_S):
                continue
            limit_w = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        if limit_w is None:
            return
        yield float(limit_w)


def _set(gpus: Sequence[GuardedGpu], limit_w: float) -> GuardAnswer:
    try:
        for gpu in gpus:
            gpu.set(limit_w)
    except NvmlError as error:
        return GuardAnswer(problem=str(error), code=error.code)
    except OSError as error:
        return GuardAnswer(problem=f"the limit to restore cannot be noted: {error}")
    return GuardAnswer()


def _restored(gpus: Sequence[GuardedGpu]) -> int:
    code = 0
    for gpu in gpus:
        try:
            gpu.restore()
        except (NvmlError, OSError) as error:
            code = 1
            with contextlib.suppress(OSError):  # nobody reads it any more
                os.write(_STDERR, f"bso: a power limit could not be restored: {error}\n".encode())
    return code


def _answer(pipe: Connection, answer: GuardAnswer) -> None:
    with contextlib.suppress(OSError):  # the training has ended
        pipe.send_bytes(json.dumps(asdict(answer)).encode())
