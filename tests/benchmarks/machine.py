"""What the machine does meanwhile: clocks of processes, the cost of fsync, and a description of it all."""

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Self

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PACKAGES = ("aio-pika", "aiormq", "asyncmy", "SQLAlchemy", "pydantic", "uvloop")
_BLOCK = b"\0" * 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Elapsed:
    """What a piece of work has taken: wall-clock time, and CPU time of this process and of others."""

    wall_s: float
    cpu_s: float
    others_s: dict[str, float]


class Stopwatch:
    """Measures what is done inside ``with``; others are processes with their children, by name."""

    def __init__(self, **others: int | Iterable[int]) -> None:
        self._others = {name: [pids] if isinstance(pids, int) else list(pids) for name, pids in others.items()}
        self.elapsed = Elapsed(wall_s=0.0, cpu_s=0.0, others_s={})

    def __enter__(self) -> Self:
        self._before_s = self._others_now_s()
        self._cpu_before_s = time.process_time()
        self._began_s = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        wall_s = time.perf_counter() - self._began_s
        cpu_s = time.process_time() - self._cpu_before_s
        now_s = self._others_now_s()
        others_s = {name: now_s[name] - self._before_s[name] for name in now_s}
        self.elapsed = Elapsed(wall_s=wall_s, cpu_s=cpu_s, others_s=others_s)

    def include_others(self) -> Elapsed:
        """The same with the others' CPU time up to now: for what they finish after the answer."""
        now_s = self._others_now_s()
        others_s = {name: now_s[name] - self._before_s[name] for name in now_s}
        return Elapsed(wall_s=self.elapsed.wall_s, cpu_s=self.elapsed.cpu_s, others_s=others_s)

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
