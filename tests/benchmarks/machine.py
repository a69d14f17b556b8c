"""What the machine does meanwhile: clocks of processes, the cost of fsync, and a description of it all."""

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Self

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PACKAGES = ("aio-pika", "aiormq", "asyncmy", "SQLAlchemy", "pydantic", "uvloop")
_BLOCK = b"\0" * 4096
_MOST_FOREIGN = 0.1
_ROUNDING_S = 0.1  # of the clocks of several processes, which tick every 10 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Elapsed:
    """What a piece of work has taken: wall-clock time, and CPU time of this process and of others.

    ``foreign_s`` is the CPU time of all processes of the machine that are none of these.
    """

    wall_s: float
    cpu_s: float
    others_s: dict[str, float]
    foreign_s: float = 0.0

    @property
    def foreign_share(self) -> float:
        """The part of the machine, all its cores, that foreign processes took."""
        return max(0.0, self.foreign_s) / (self.wall_s * (os.cpu_count() or 1))

    @property
    def is_disturbed(self) -> bool:
        """Whether that was more than a tenth."""
        return self.foreign_share > _MOST_FOREIGN and self.foreign_s > _ROUNDING_S


class Stopwatch:
    """Measures what is done inside ``with``; others are processes with their children, by name."""

    def __init__(self, **others: int | Iterable[int]) -> None:
        self._others = {name: [pids] if isinstance(pids, int) else list(pids) for name, pids in others.items()}
        self.elapsed = Elapsed(wall_s=0.0, cpu_s=0.0, others_s={})

    def __enter__(self) -> Self:
        self._busy_before_s = busy_s()
        self._before_s = self._others_now_s()
        self._cpu_before_s = time.process_time()
        self._began_s = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        wall_s = time.perf_counter() - self._began_s
        cpu_s = time.process_time() - self._cpu_before_s
        now_s = self._others_now_s()
        others_s = {name: now_s[name] - self._before_s[name] for name in now_s}
        foreign_s = busy_s() - self._busy_before_s - cpu_s - sum(others_s.values())
        self.elapsed = Elapsed(wall_s=wall_s, cpu_s=cpu_s, others_s=others_s, foreign_s=foreign_s)

    def include_others(self) -> Elapsed:
        """The same with the others' CPU time up to now: for what they finish after the answer."""
        now_s = self._others_now_s()
        others_s = {name: now_s[name] - self._before_s[name] for name in now_s}
        return replace(self.elapsed, others_s=others_s)

    def _others_now_s(self) -> dict[str, float]:
        return {name: sum(map(cpu_of_tree_s, pids)) for name, pids in self._others.items()}


def cpu_of_tree_s(pid: int) -> float:
    """CPU time of a process and its living descendants, to 10 ms; Linux only."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own_s = (int(fields[11]) + int(fields[12])) * _TICK_S
    return own_s + sum(map(cpu_of_tree_s, _children(pid)))


def memory_of_tree(pid: int) -> int:
    """Resident memory [bytes] of a process and its living descendants; Linux only."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * _PAGE + sum(map(memory_of_tree, _children(pid)))


def files_of_tree(pid: int) -> int:
    """How many files and sockets a process and its living descendants have open; Linux only."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()) + sum(map(files_of_tree, _children(pid)))


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def busy_s() -> float:
    """CPU time of all processes of the machine, and what its host has taken of its cores; Linux only.

    Interrupts are left out: nearly all of them are packets of the load itself, and belong to no process.
    """
    _, user, nice, system, _, _, _, _, stolen, *_ = Path("/proc/stat").read_text().split(maxsplit=9)
    return sum(map(int, (user, nice, system, stolen))) * _TICK_S


def resident_mb(pid: int) -> float:
    """The memory of a process that is in RAM [MB of 10^6 bytes]; Linux only."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (resident,) = (line for line in lines if line.startswith("VmRSS:"))
    return int(resident.split()[1]) * 1024 / 1e6


def fdatasync_s(folder: Path, *, times: int) -> float:
    """The median time of appending a block to a file and having it on the disk: no durable commit is faster."""
    path = folder / "fdatasync-probe"
    taken_s = []
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            began_s = time.perf_counter()
            file.write(_BLOCK)
            os.fdatasync(file.fileno())
            taken_s.append(time.perf_counter() - began_s)
    path.unlink()
    return statistics.median(taken_s)


def description() -> dict[str, object]:
    """The machine and the versions, in words."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
        "mariadb": _first_words(["mariadb", "--version"]),
        "rabbitmq": _rabbitmq_version(),
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _first_words(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()[:120]
    except (OSError, subprocess.SubprocessError):
        return "not found"


def _rabbitmq_version() -> str:
    folders = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
    return folders[-1].name.partition("-")[2] if folders else "not found"
