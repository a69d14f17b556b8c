"""The power limit of this process' GPUs, set through a guard process that restores it when this one has ended."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bso.domain.errors import Misconfigured
from bso_client.energy import EnergyMonitor, NoMeter
from bso_client.energy.gpus import LimitedGpu, NoLimitedGpu, common_limits_w, find_limited_gpus
from bso_client.energy.monitor import Monitor
from bso_client.energy.nvml import NvmlError
from bso_client.lifecycle import before_sigterm
from bso_client.processes import command_for

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

logger = logging.getLogger("bso")

ANSWER_TIMEOUT_S = 10.0
"""How long a training waits for a limit to be set; NVML takes milliseconds. Three times that for the guard's start."""

_LOCK_FOLDERS = (Path("/run/lock"), Path("/var/lock"))
_NO_PERMISSION = 4  # NVML_ERROR_NO_PERMISSION

PERMISSION = (
    "setting the power limit of a GPU needs root or the right CAP_SYS_ADMIN (sudo; in a container "
    "`--cap-add SYS_ADMIN`): ask the administrator of this machine for it, or let the limit be as it is. "
    "Training and measuring go on as without a PowerLimitOptimizer"
)

EARLIER = (
    "another PowerLimitOptimizer of this process sets the power limit of the same GPU already: close the earlier "
    "PowerLimitOptimizer first, or make one for all trials, `with PowerLimitOptimizer(bso) as power_limit:` around "
    "their loop"
)

logged: set[str] = set()
"""What this process has logged, which it does not repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The GPUs of this process, their limit and their meter. Limits in watts of each GPU, max_power_w of all."""

    gpus: tuple[LimitedGpu, ...]
    limit: GuardedLimit
    monitor: Monitor
    is_own_monitor: bool
    highest_w: float
    lowest_w: float

    @property
    def max_power_w(self) -> float:
        """The largest power [W] that all of them may draw together."""
        return sum(gpu.highest_w for gpu in self.gpus)

    def describe(self) -> str:
        """What they are, in a few words that are the same for the same hardware."""
        kinds = sorted({f"{gpu.name} ({gpu.memory_mib} MiB)" for gpu in self.gpus})
        return f"{len(self.gpus)} x {' and '.join(kinds)}"

    def close(self) -> None:
        """Restore the limits and let go of the meter."""
        try:
            self.limit.close()
        except LimitNotSet as error:
            extra = {"action": "power_limit_not_restored"}
            logger.warning("the power limits of %s may not be restored: %s", self.describe(), error, extra=extra)
        if self.is_own_monitor and isinstance(self.monitor, EnergyMonitor):
            self.monitor.close()


def installed(
    *,
    environ: Mapping[str, str],
    gpu_indices: Sequence[int] | None,
    monitor: Monitor | None,
    lock_folder: Path,
) -> Installation | str:
    """All of it, or why not: logged once per process."""
    indices = gpu_indices if gpu_indices is not None else getattr(monitor, "gpu_indices", None)
    try:
        gpus = find_limited_gpus(environ, indices)
    except NoLimitedGpu as error:
        return _log_once(logging.WARNING, "no_gpu", f"power limits are left alone: {error}")
    try:
        limit = GuardedLimit([gpu.uuid for gpu in gpus], lock_folder=lock_folder)
    except LimitNotSet as error:
        problem = EARLIER if is_held_here(gpu.uuid for gpu in gpus) else error
        said = PERMISSION if error.needs_permission else f"no power limit is tuned: {problem}"
        return _log_once(logging.WARNING, "power_limit_unavailable", said)
    try:
        chosen = monitor or EnergyMonitor([gpu.index for gpu in gpus])
    except (NoMeter, NvmlError) as error:
        limit.close()
        return _log_once(logging.WARNING, "power_limit_unavailable", f"no power limit is tuned: {error}")
    highest_w, lowest_w = common_limits_w(gpus, limit.found_w)
    return Installation(
        gpus=gpus,
        limit=limit,
        monitor=chosen,
        is_own_monitor=monitor is None,
        highest_w=highest_w,
        lowest_w=lowest_w,
    )


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
        self._order = (str(os.getpid()), str(lock_folder), *uuids)
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


def default_lock_folder() -> Path:
    """A folder that all users and processes of this machine share, as far as there is one."""
    for folder in _LOCK_FOLDERS:
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    return Path(tempfile.gettempdir())


_made: weakref.WeakSet[GuardedLimit] = weakref.WeakSet()


class _Guard:
    """A process that runs bso_client.power.guard, and the connection to it."""

    def __init__(self, order: Sequence[str], *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._process, self._pipe = _started(order)
        self.end = weakref.finalize(self, _end, self._process, self._pipe, os.getpid(), timeout_s=timeout_s / 2)
        try:
            self.found_w = self._answer(timeout_s=3 * timeout_s)
        except LimitNotSet:
            self.end()
            raise

    @property
    def lives(self) -> bool:
        has_ended = self._process.poll() is not None  # looked at in any case: who looks takes it from the system's list
        return self.end.alive and not has_ended

    @property
    def is_closed(self) -> bool:
        return not self.end.alive

    def set(self, limit_w: float) -> None:
        try:
            self._pipe.send_bytes(json.dumps(limit_w).encode())
        except OSError as error:
            raise LimitNotSet(f"the process that restores power limits has ended: {error}") from error
        self._answer(timeout_s=self._timeout_s)

    def _answer(self, *, timeout_s: float) -> dict[str, float]:
        answer = b""
        try:
            with contextlib.suppress(EOFError, OSError):
                answer = self._pipe.recv_bytes() if self._pipe.poll(timeout_s) else b""
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


def _started(order: Sequence[str]) -> tuple[subprocess.Popen[bytes], Connection]:
    """The guard, whose stdin is the connection. Its stderr is ours: there it reports what it cannot restore."""
    from multiprocessing import Pipe  # most processes start no guard

    ours, theirs = Pipe()
    command = command_for("bso_client.power.guard", *order)
    try:
        process = subprocess.Popen(  # noqa: S603  # our own module
            command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        ours.close()
        raise LimitNotSet(f"the process that restores power limits cannot be started: {error}") from error
    finally:
        theirs.close()
    return process, ours


def _end(process: subprocess.Popen[bytes], pipe: Connection, pid: int, *, timeout_s: float) -> None:
    """Ask the guard to restore, and wait until it has ended. Forked children may keep its connection open."""
    if pid != os.getpid():
        process.returncode = process.returncode or 0  # a forked copy must not wait for what is not its child
        return
    with contextlib.suppress(OSError):
        pipe.send_bytes(b"null")
    pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)


def _log_once(level: int, action: str, words: str) -> str:
    if words not in logged:
        logged.add(words)
        logger.log(level, "%s", words, extra={"action": action})
    return words
