"""The power limit of this process' GPUs, and the guard process that restores it where this one cannot."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bso.domain.errors import Misconfigured
from bso_client.energy import EnergyMonitor, NoMeter
from bso_client.energy.gpus import NoSuchGpu, choose_gpus
from bso_client.energy.monitor import Monitor
from bso_client.energy.nvml import Gpu, NoPermission, Nvml, NvmlError
from bso_client.lifecycle import before_sigterm
from bso_client.once import warn_once
from bso_client.power.guard import LimitRecord, LimitTaken, LockFile
from bso_client.processes import boot_id, command_for

logger = logging.getLogger("bso")

END_TIMEOUT_S = 5.0
"""How long to wait for the end of the guard."""

_LOCK_FOLDERS = (Path("/run/lock"), Path("/var/lock"))

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The limit of this process' GPUs, and their meter."""

    limit: GuardedLimit
    monitor: Monitor
    is_own_monitor: bool

    def close(self) -> None:
        """Restore the limits and let go of the meter."""
        self.limit.close()
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
        limit = GuardedLimit(environ, indices, lock_folder=lock_folder)
    except NoSuchGpu as error:
        return warn_once(f"power limits are left alone: {error}", action="no_gpu")
    except LimitNotSet as error:
        said = PERMISSION if error.needs_permission else f"no power limit is tuned: {error}"
        return warn_once(said, action="power_limit_unavailable")
    try:
        chosen = monitor or EnergyMonitor(limit.gpu_indices)
    except (NoMeter, NvmlError) as error:
        limit.close()
        return warn_once(f"no power limit is tuned: {error}", action="power_limit_unavailable")
    return Installation(limit=limit, monitor=chosen, is_own_monitor=monitor is None)


class LimitNotSet(Misconfigured):
    """The power limit could not be set; NVML's reason, if it has one, is the cause."""

    @property
    def needs_permission(self) -> bool:
        """Whether it is for want of the right to."""
        return isinstance(self.__cause__, NoPermission)


class GuardedLimit:
    """One power limit for several GPUs; they get back what they had when it is closed, or this process has ended.

    ``gpu_indices`` as CUDA_VISIBLE_DEVICES shows them; None: all of this process. Raises NoSuchGpu, and LimitNotSet
    where limits may not be set here, or where another process sets them. To be used in the process that made it.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        gpu_indices: Sequence[int] | None = None,
        *,
        lock_folder: Path,
        timeout_s: float = END_TIMEOUT_S,
    ) -> None:
        self._pid, self._lock_folder = os.getpid(), lock_folder
        with contextlib.ExitStack() as opened:
            chosen = choose_gpus(_opened(opened), environ, gpu_indices)
            self.gpu_indices = list(chosen)
            self._uuids = frozenset(gpu.uuid for gpu in chosen.values())
            if any(limit.holds(self._uuids) for limit in _made):
                raise LimitNotSet(EARLIER)
            with _refusals(lock_folder):
                locks = {uuid: opened.enter_context(LockFile(lock_folder, uuid)) for uuid in sorted(self._uuids)}
                self._gpus = [_LockedGpu(gpu, locks[gpu.uuid]) for gpu in chosen.values()]
                self._guard = _Guard(self._gpus, timeout_s=timeout_s)
                self._end = weakref.finalize(self, _end, self._gpus, self._guard, opened.pop_all(), self._pid)
                try:
                    for gpu in self._gpus:
                        gpu.try_to_set()
                except BaseException:
                    self._end()
                    raise
        _made.add(self)
        before_sigterm(self)

    @property
    def highest_w(self) -> float:
        """The highest limit [W] that all of them take. A cap that somebody has set below a default stays one."""
        return min(gpu.ceiling_w for gpu in self._gpus)

    @property
    def lowest_w(self) -> float:
        """The lowest limit [W] that all of them take."""
        return max(gpu.lowest_w for gpu in self._gpus)

    @property
    def max_power_w(self) -> float:
        """The largest power [W] that all of them may draw together."""
        return sum(gpu.highest_w for gpu in self._gpus)

    def describe(self) -> str:
        """What the GPUs are, in a few words that are the same for the same hardware."""
        return f"{len(self._gpus)} x {' and '.join(sorted({gpu.model for gpu in self._gpus}))}"

    def holds(self, uuids: frozenset[str]) -> bool:
        """Whether this process sets the limit of one of these GPUs by it, until it is closed."""
        return self._pid == os.getpid() and self._end.alive and not self._uuids.isdisjoint(uuids)

    def set(self, limit_w: float) -> None:
        """Set the limit [W] of each GPU. Raises LimitNotSet; some of the GPUs may have it then."""
        self.keep_guarded()
        with _refusals(self._lock_folder):
            for gpu in self._gpus:
                gpu.set(limit_w)

    def keep_guarded(self) -> None:
        """If the guard has gone, start another one. Raises LimitNotSet."""
        if not self._end.alive:
            raise LimitNotSet("the limits are restored already")
        if not self._guard.lives:
            logger.warning(
                "the process that restores power limits has gone: another one takes its place",
                extra={"action": "guard_restarted"},
            )
            self._guard.end(is_needed=False)
            self._guard.start()

    def close(self) -> None:
        """Restore the limits, and set no others. Idempotent; what cannot be restored is left to the guard."""
        self._end()

    close_for_good = close


def default_lock_folder() -> Path:
    """A folder that all users and processes of this machine share, as far as there is one."""
    for folder in _LOCK_FOLDERS:
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    return Path(tempfile.gettempdir())


_made: weakref.WeakSet[GuardedLimit] = weakref.WeakSet()


class _LockedGpu:
    """One GPU whose power limit [W] is set here and nowhere else."""

    def __init__(self, gpu: Gpu, lock: LockFile) -> None:
        self.uuid, self.lock = gpu.uuid, lock
        self.model = f"{gpu.name} ({gpu.memory_mib} MiB)"
        self.lowest_w, self.highest_w = gpu.power_limits_w
        self._gpu, self._found_w, boot = gpu, gpu.power_limit_w, boot_id()
        left = lock.left_behind()
        is_leftover = left is not None and left.explains(self._found_w, boot)
        self.original_w = left.original_w if left is not None and is_leftover else self._found_w
        self._record = LimitRecord(
            original_w=self.original_w, set_w=(self._found_w,) if is_leftover else (), boot_id=boot
        )
        self.ceiling_w = self.original_w if self.original_w < gpu.default_power_limit_w else self.highest_w

    def try_to_set(self) -> None:
        """Set the limit that is set: it changes nothing, and shows whether limits may be set."""
        self._gpu.set_power_limit_w(self._found_w)

    def set(self, limit_w: float) -> None:
        """Set the limit [W]; noted before it is done."""
        if limit_w not in self._record.set_w:
            self._record = replace(self._record, set_w=(*self._record.set_w, limit_w))
            self.lock.write(self._record, pid=os.getpid())
        self._gpu.set_power_limit_w(limit_w)

    def restore(self) -> bool:
        """Set what was found at the beginning; False: it could not be set."""
        if self._record.set_w:
            try:
                self._gpu.set_power_limit_w(self.original_w)
                self.lock.forget()
            except (NvmlError, OSError) as error:
                extra = {"action": "power_limit_not_restored"}
                logger.warning("a power limit may not be restored: %s", error, extra=extra)
                return False
        return True


class _Guard:
    """The process that runs bso_client.power.guard. Its stderr is ours: there it reports what it cannot restore."""

    def __init__(self, gpus: Sequence[_LockedGpu], *, timeout_s: float) -> None:
        self._held = {gpu.uuid: (gpu.lock.descriptor, gpu.original_w) for gpu in gpus}
        self._timeout_s = timeout_s
        self.start()

    def start(self) -> None:
        try:
            self.process = subprocess.Popen(  # noqa: S603  # our own module
                command_for("bso_client.power.guard", str(os.getpid()), json.dumps(self._held)),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[descriptor for descriptor, _ in self._held.values()],
                start_new_session=True,
            )
        except OSError as error:
            raise LimitNotSet(f"the process that restores power limits cannot be started: {error}") from error

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def end(self, *, is_needed: bool) -> None:
        """Wait until it has ended; where it is needed, it restores first, unless forked children keep its pipe open."""
        assert self.process.stdin is not None
        if not is_needed:
            self.process.kill()  # first: at the end of its pipe it would restore, while another training may set limits
        self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(self._timeout_s)


def _end(gpus: Sequence[_LockedGpu], guard: _Guard, resources: contextlib.ExitStack, pid: int) -> None:
    if pid != os.getpid():
        guard.process.returncode = guard.process.returncode or 0  # it is no child of a forked copy, which must not wait
        return
    remaining = [gpu for gpu in gpus if not gpu.restore()]
    guard.end(is_needed=bool(remaining))
    if not remaining:
        for gpu in gpus:
            gpu.lock.release()
    resources.close()


def _opened(resources: contextlib.ExitStack) -> Nvml:
    try:
        return resources.enter_context(Nvml())
    except NvmlError as error:
        raise NoSuchGpu(str(error)) from error


@contextlib.contextmanager
def _refusals(lock_folder: Path) -> Iterator[None]:
    """LimitNotSet for what fails inside."""
    try:
        yield
    except NvmlError as error:
        raise LimitNotSet(str(error)) from error
    except LimitTaken as error:
        raise LimitNotSet(f"{error} sets the power limit of the same GPU already") from error
    except OSError as error:
        raise LimitNotSet(f"no lock can be kept in {lock_folder}: {error}") from error
