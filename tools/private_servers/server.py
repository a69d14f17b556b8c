"""The life of a private server: start, kill, freeze, thaw, stop, start again."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_urlsafe
from types import TracebackType
from typing import IO, ClassVar, Self

from tools.private_servers.ports import ClaimedPorts

# The guard outlives its parent: when the pipe to it closes, it kills the server and removes the folder.
# A killed process may still make a file while the folder is being removed, which then is not empty: once more.
_GUARD = (
    'cat >/dev/null; for p in $2; do kill -s KILL -- "-$p"; done 2>/dev/null; '
    'for i in $(seq 300); do rm -rf -- "$1" 2>/dev/null && exit; sleep 0.2; done'
)


UNMISTAKABLE = "canary/"
"""What the passwords of private servers begin with, so that they are recognised wherever they are printed."""


def new_password() -> str:
    """A password that nobody else has."""
    return UNMISTAKABLE + token_urlsafe(12)


class ServerMissing(Exception):
    """The server's programs are not installed on this machine."""


GONE_TIMEOUT_S = 60.0  # how long killed processes may take to go, and stopped ones to stop


class ServerFailed(Exception):
    """The server did not do what was asked of it in time; the message ends with its last output."""


class PrivateServer(ABC):
    """A server process of one's own, with its data in a temporary folder that close() removes.

    Nothing runs before start(). ``guard`` is the process that removes all of it once this one has gone.
    """

    name: ClassVar[str]
    port_count: ClassVar[int] = 1  # how many it listens on
    start_timeout_s: ClassVar[float] = 300.0

    def __init__(self) -> None:
        self._claimed = ClaimedPorts(self.port_count)
        self.ports = self._claimed.numbers
        self.folder = Path(tempfile.mkdtemp(prefix=f"bso-{self.name}-")).resolve()
        self.password = new_password()  # of its administrator, over TCP
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.guard: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the server, on the same port and data as before, and return when it answers."""
        if self.is_running:
            return self
        self.kill()  # what is left of one that has died of itself, its guard above all: that would remove the data
        try:
            self._launch()
            self._watch_over_children()
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        """End the server as a power failure would (SIGKILL); its data stay. Does nothing when it is not running."""
        self._dismiss_guard()
        for process in self._processes.values():
            _kill_tree(process)
        self._processes.clear()

    def freeze(self) -> None:
        """Stop the server in its tracks (SIGSTOP): connections stay open and nothing answers.

        Returns when every thread has stopped: until then one may still answer.
        """
        deadline = time.monotonic() + GONE_TIMEOUT_S
        # Signalled again while one is not seen to have stopped: a child may have been born meanwhile.
        while not all(_has_stopped(pid) for pid in _signal_tree(self._main.pid, signal.SIGSTOP)):
            if time.monotonic() > deadline:
                self.thaw()
                raise ServerFailed(f"{self.name} does not stop")
            time.sleep(0.001)

    def thaw(self) -> None:
        """Let a frozen server go on (SIGCONT)."""
        _signal_tree(self._main.pid, signal.SIGCONT)

    def stop(self, timeout_s: float = 120.0) -> None:
        """Ask the server to shut down in order, and kill it if it has not in time; its data stay."""
        if self.is_running:
            self.thaw()
            self._main.send_signal(self._stop_signal())
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._main.wait(timeout_s)
        self.kill()

    def close(self) -> None:
        """Kill the server, remove its temporary folder and let others have its ports."""
        self.kill()
        self._claimed.release()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """Whether the server's process lives; a frozen one does."""
        main = self._processes.get(self.name)
        return main is not None and main.poll() is None

    @property
    @abstractmethod
    def url(self) -> str:
        """Where a client connects, credentials included."""

    @abstractmethod
    def _launch(self) -> None:
        """Prepare the data if they are new, and spawn the processes; the main one under self.name."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server takes requests."""

    def _stop_signal(self) -> signal.Signals:
        return signal.SIGTERM

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the server's main process, which comes first, and of its descendants."""
        return (self._main.pid, *descendants(self._main.pid))

    @property
    def _main(self) -> subprocess.Popen[bytes]:
        if self.name not in self._processes:
            raise ServerFailed(f"{self.name} is not running")
        return self._processes[self.name]

    def _spawn(self, name: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        with self._log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(part) for part in command],
                env=env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _run(
        self,
        command: Sequence[str | Path],
        timeout_s: float = 300.0,
        *,
        typed: str = "",
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Run a program of the server to its end and return what it printed.

        ``typed`` is its input: passwords go there, as everybody may read arguments.
        """
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.folder,
            env=env,
            input=typed,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise ServerFailed(f"{command[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.start_timeout_s
        while not self.answers():
            if self._main.poll() is not None:
                raise ServerFailed(f"{self.name} ended with {self._main.returncode}: {self._last_output()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} does not answer: {self._last_output()}")
            time.sleep(0.05)

    def _last_output(self) -> str:
        return self._log(self.name).read_text(errors="replace")[-2000:]

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _watch_over_children(self) -> None:
        pids = " ".join(str(process.pid) for process in self._processes.values())
        self.guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", str(self.folder), pids],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _dismiss_guard(self) -> None:
        if self.guard is None:
            return
        os.killpg(self.guard.pid, signal.SIGKILL)
        self.guard.wait()
        _close(self.guard.stdin)
        self.guard = None


def program(name: str, *patterns: str, package: str) -> Path:
    """The newest program that a pattern finds, else the one on the PATH or among the system's; else ServerMissing."""
    found = [path for pattern in patterns for path in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)]
    on_path = shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")
    if not found and on_path is None:
        raise ServerMissing(f"no {name} on this machine; Debian has it in the package {package}")
    return found[0] if found else Path(str(on_path))


def greets(port: int, *, timeout_s: float = 10.0) -> bool:
    """Whether something listens on the port, and speaks first."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
            return bool(connection.recv(64))
    except OSError:
        return False


def _signal_tree(pid: int, number: signal.Signals) -> list[int]:
    """Signal a process and its descendants, parents first, whatever process groups they have made for themselves."""
    tree = [pid, *descendants(pid)]
    for one in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)
    return tree


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a process and its descendants, and return when all are gone.

    Stopped first, it makes no more children. PostgreSQL does not start while a child of the killed one lives.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGSTOP)
    children = list(descendants(process.pid))
    for one in [process.pid, *children]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while any(_is_alive(one) for one in children) and time.monotonic() < deadline:
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    """Whether a process runs still; one that has ended and waits for its parent does not."""
    return _state(Path(f"/proc/{pid}/stat")) not in {None, "Z"}


def _has_stopped(pid: int) -> bool:
    """Whether SIGSTOP has reached every thread of a process, or the process has ended."""
    return all(_state(thread / "stat") in {None, "T", "Z"} for thread in _threads(pid))


def _state(stat: Path) -> str | None:
    """The letter for what a process or a thread does, see proc(5); None: it has gone."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def _threads(pid: int) -> list[Path]:
    """The threads of a process, see proc(5); none of one that has gone, be it while they are listed."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process and its descendants have started, by any of their threads, and that still run."""
    for thread in _threads(pid):
        try:
            found = [int(child) for child in (thread / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in found:
            yield child
            yield from descendants(child)


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
