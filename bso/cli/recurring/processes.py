"""Knowing a process again: whether what was launched by a driver that is gone still runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

WATCH_S = 0.5


class Process(Protocol):
    """A launched program; asyncio's own are such."""

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    async def wait(self) -> int | None:
        """Its exit code once it has ended, None where that cannot be known."""
        ...

    def send_signal(self, number: int, /) -> None:
        """Signal it. Raises ProcessLookupError where it has ended."""
        ...

    def kill(self) -> None:
        """Kill it."""
        ...


class Orphan:
    """A running program that another process launched. It can be watched and signalled; its exit code is lost."""

    def __init__(self, pid: int, started: str) -> None:
        self.pid = pid
        self._started = started

    @property
    def is_running(self) -> bool:
        """Whether it has not ended; another process that has got its number since is not it."""
        return _start_of(self.pid) == self._started

    async def wait(self) -> None:
        """Wait for its end."""
        while self.is_running:  # noqa: ASYNC110 - a process of somebody else's tells nobody when it ends
            await asyncio.sleep(WATCH_S)

    def send_signal(self, number: int, /) -> None:
        """Signal it. Raises ProcessLookupError where it has ended."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        with contextlib.suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)


def this_machine() -> str:
    """A name for this machine since it was started, and within it for this space of process numbers."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def signing_in(path: Path) -> Callable[[], None]:
    """What a new process does before it becomes the program: leave its name, so that no launch goes unnoticed."""
    machine = this_machine()

    def sign_in() -> None:
        pid = os.getpid()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(descriptor, f"{machine}\n{pid}\n{_start_of(pid)}\n".encode())
        os.close(descriptor)

    return sign_in


def still_running(path: Path) -> Orphan | None:
    """The process that has signed in, if it is still running here."""
    try:
        machine, pid, started, *_ = path.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ValueError):
        return None
    orphan = Orphan(int(pid), started)
    return orphan if machine == this_machine() and orphan.is_running else None


def _start_of(pid: int) -> str | None:
    """When a process started, in the kernel's own reckoning; None if it has ended. Without /proc, that it runs."""
    if not Path("/proc/self/stat").exists():
        return "running" if _exists(pid) else None
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, started = after_name[0], after_name[19]
    return None if state in "ZX" else started


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
