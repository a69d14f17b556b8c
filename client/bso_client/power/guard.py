"""The process that sets power limits for a training, and restores them when the training has ended, however it did.

A SIGKILL leaves a training no last words: this process sees the end of its pipe, or of the training, and restores. It
heeds no signal that its training gets, and is a session of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from bso_client.boot import boot_id
from bso_client.energy.errors import NvmlError
from bso_client.energy.nvml import Gpu, Nvml
from bso_client.power.lock_files import LimitRecord, LimitTaken, LockFile, LockFiles

_STDIN, _STDOUT, _STDERR = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Whose limits to set, by UUID, for which process."""

    uuids: tuple[str, ...]
    parent: int
    lock_folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a request went. ``code`` is NVML's own where it refused."""

    problem: str = ""
    code: int = 0
    found_w: Mapping[str, float] = field(
        default_factory=dict
    )  # the limits to restore, by UUID: the answer to the order


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
        gpu.set_power_limit_w(current_w)  # changes nothing, and tells whether limits may be set

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

    The argument is the order. Answers one line of JSON to it, and one to each limit that stdin names.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    data = json.loads(arguments[0])
    order = Order(uuids=tuple(data["uuids"]), parent=int(data["parent"]), lock_folder=str(data["lock_folder"]))
    try:
        with LockFiles(Path(order.lock_folder), order.uuids) as locks, Nvml() as nvml:
            return _guard(order, locks, nvml)
    except NvmlError as error:
        _answer(Answer(problem=str(error), code=error.code))
    except LimitTaken as error:
        _answer(Answer(problem=f"{error} sets the power limit of the same GPU already"))
    except OSError as error:
        _answer(Answer(problem=f"no lock can be kept in {order.lock_folder}: {error}"))
    return 1


def _guard(order: Order, locks: LockFiles, nvml: Nvml) -> int:
    found = nvml.visible_gpus(",".join(order.uuids))
    if len(found) < len(order.uuids):
        _answer(Answer(problem=f"of the GPUs {', '.join(order.uuids)} only {len(found)} are there"))
        return 1
    gpus = [GuardedGpu(gpu, locks.by_uuid[gpu.uuid], parent=order.parent) for gpu in found]
    _answer(Answer(found_w={gpu.uuid: gpu.found_w for gpu in gpus}))
    for request in _requests(order.parent):
        _answer(_set(gpus, float(request)))
    return _restored(gpus)


def _set(gpus: Sequence[GuardedGpu], limit_w: float) -> Answer:
    try:
        for gpu in gpus:
            gpu.set(limit_w)
    except NvmlError as error:
        return Answer(problem=str(error), code=error.code)
    except OSError as error:
        return Answer(problem=f"the limit to restore cannot be noted: {error}")
    return Answer()


def _restored(gpus: Sequence[GuardedGpu]) -> int:
    code = 0
    for gpu in gpus:
        try:
            gpu.restore()
        except (NvmlError, OSError) as error:
            code = 1
            _say(_STDERR, f"bso: a power limit could not be restored: {error}")
    return code


def _requests(parent: int) -> Iterator[str]:
    """The lines of stdin until its end, or until the parent's. A forked child of the parent may keep stdin open."""
    poller = select.poll()
    poller.register(_STDIN, select.POLLIN)
    ending = _ending_of(parent)
    if ending is not None:
        poller.register(ending, select.POLLIN)
    rest = b""
    while os.getppid() == parent:
        ready = [fd for fd, _ in poller.poll()]
        if ending in ready or not (read := os.read(_STDIN, 4096)):
            return
        *lines, rest = (rest + read).split(b"\n")
        yield from (line.decode() for line in lines)


def _ending_of(parent: int) -> int | None:
    """What becomes readable when the process ends; None where the system has no such thing."""
    open_pidfd = getattr(os, "pidfd_open", None)
    with contextlib.suppress(OSError):
        return None if open_pidfd is None else int(open_pidfd(parent))
    return None


def _answer(answer: Answer) -> None:
    _say(_STDOUT, json.dumps(asdict(answer)))


def _say(fd: int, line: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(fd, f"{line}\n".encode())
