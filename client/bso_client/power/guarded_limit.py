"""The power limit of this process' GPUs, set through a guard process that restores it when this one has ended."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import time
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

from bso.domain.errors import Misconfigured
from bso_client.child_process import command_for
from bso_client.lifecycle import before_sigterm

logger = logging.getLogger("bso")

ANSWER_TIMEOUT_S = 10.0
"""How long a training waits for a limit to be set; NVML takes milliseconds. Three times that for the guard's start."""

_NO_PERMISSION = 4  # NVML_ERROR_NO_PERMISSION


class LimitNotSet(Misconfigured):
    """The power limit could not be set; ``needs_permission``: for want of the right to."""

    def __init__(self, said: str, *, needs_permission: bool = False) -> None:
        self.needs_permission = needs_permission
        super().__init__(said)


class GuardedLimit:
    """One power limit for several GPUs; they get back what they had when it is closed, or this process has ended.

    Making one raises LimitNotSet where limits may not be set here, or where another process sets them. To be used in
    the process that made it.
    """

    def __init__(self, uuids: Sequence[str], *, lock_folder: Path, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._order = json.dumps({"uuids": list(uuids), "parent": os.getpid(), "lock_folder": str(lock_folder)})
        self._uuids, self._pid = frozenset(uuids), os.getpid()
        self._limit_w: float | None = None
        self._is_over = False
        self._timeout_s = timeout_s
        self._guard = _Guard(self._order, timeout_s=timeout_s)
        self.found_w = self._guard.found_w
        """The limits that are restored [W], by UUID."""
        _made.add(self)
        before_sigterm(self)

    def holds(self, uuids: Iterable[str]) -> bool:
        """Whether this process sets the limit of one of these GPUs by it, until it is closed."""
        return self._pid == os.getpid() and not self._guard.is_closed and not self._uuids.isdisjoint(uuids)

    def set(self, limit_w: float) -> None:
        """Set the limit [W] of each GPU. Raises LimitNotSet; some of the GPUs may have it then."""
        self.keep_guarded()
        self._guard.set(limit_w)
        self._limit_w = limit_w

    def keep_guarded(self) -> None:
        """If the guard has gone, start another one, which knows what to restore. Raises LimitNotSet."""
        if self._is_over:
            raise LimitNotSet("the limits are restored, since this process is about to end")
        if self._guard.lives:
            return
        logger.warning(
            "the process that restores power limits has gone: another one takes its place",
            extra={"action": "guard_restarted"},
        )
        self._guard.end()
        self._guard = _Guard(self._order, timeout_s=self._timeout_s)
        if self._limit_w is not None:
            self._guard.set(self._limit_w)

    def close(self) -> None:
        """Restore the limits. Waits for it, for some seconds; idempotent. Raises LimitNotSet."""
        if self._guard.is_closed:
            return
        try:
            self.keep_guarded()
        finally:
            self._guard.end()

    def close_for_good(self) -> None:
        """Restore the limits, and refuse to set others."""
        self._is_over = True
        self._guard.end()


def is_held_here(uuids: Iterable[str]) -> bool:
    """Whether a GuardedLimit of this process that is still open sets the limit of one of these GPUs."""
    wanted = frozenset(uuids)
    return any(limit.holds(wanted) for limit in _made)


_made: weakref.WeakSet[GuardedLimit] = weakref.WeakSet()


class _Guard:
    """A process that runs bso_client.power.guard, and the pipes to and from it."""

    def __init__(self, order: str, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._process, self._requests = _started(order)
        self._end = weakref.finalize(self, _end, self._process, self._requests, os.getpid(), timeout_s=timeout_s / 2)
        _open_requests.add(self._requests)
        _close_in_children()
        try:
            self.found_w = self._heed(timeout_s=3 * timeout_s)
        except LimitNotSet:
            self.end()
            raise

    @property
    def lives(self) -> bool:
        return self._end.alive and self._process.poll() is None

    @property
    def is_closed(self) -> bool:
        return not self._end.alive

    def set(self, limit_w: float) -> None:
        try:
            os.write(self._requests, f"{limit_w}\n".encode())
        except OSError as error:
            raise LimitNotSet(f"the process that restores power limits has ended: {error}") from error
        self._heed(timeout_s=self._timeout_s)

    def end(self) -> None:
        self._end()

    def _heed(self, *, timeout_s: float) -> dict[str, float]:
        try:
            answer = _line(self._process, timeout_s=timeout_s)
        except BaseException:  # a signal handler's: an answer that came later would be taken for the next one
            self.end()
            raise
        if not answer:
            self.end()
            raise LimitNotSet("the process that restores power limits does not answer")
        data = json.loads(answer)
        if data["problem"]:
            raise LimitNotSet(data["problem"], needs_permission=data["code"] == _NO_PERMISSION)
        return {str(uuid): float(limit_w) for uuid, limit_w in data["found_w"].items()}


_open_requests: set[int] = set()
_handled: list[bool] = []


def _started(order: str) -> tuple[subprocess.Popen[bytes], int]:
    """The guard and the pipe that it reads. Its stderr is ours: it has to say what it cannot restore."""
    theirs, ours = os.pipe()
    command = command_for("bso_client.power.guard", order)
    try:
        process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, start_new_session=True)  # noqa: S603
    except OSError as error:
        os.close(ours)
        raise LimitNotSet(f"the process that restores power limits cannot be started: {error}") from error
    finally:
        os.close(theirs)
    return process, ours


def _line(process: subprocess.Popen[bytes], *, timeout_s: float) -> bytes:
    """A line of the process; empty when the time is over, or it has ended."""
    assert process.stdout is not None
    fd, deadline, read = process.stdout.fileno(), time.monotonic() + timeout_s, b""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    while not read.endswith(b"\n"):
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000) or not (more := os.read(fd, 4096)):
            return b""
        read += more
    return read


def _end(process: subprocess.Popen[bytes], requests: int, pid: int, *, timeout_s: float) -> None:
    """Close the pipe, which makes the guard restore and end."""
    if pid != os.getpid():
        process.returncode = process.returncode or 0  # a forked copy must not wait for what is not its child
        return
    _open_requests.discard(requests)
    os.close(requests)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
    if process.stdout is not None:
        process.stdout.close()


def _close_in_children() -> None:
    """See to it that forked children, which may outlive this process, do not keep the guards' pipes open."""
    if not _handled and hasattr(os, "register_at_fork"):
        _handled.append(True)
        os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    while _open_requests:
        with contextlib.suppress(OSError):
            os.close(_open_requests.pop())
