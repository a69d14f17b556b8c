"""The installed ``bso`` command, run as a user runs it: a process of its own with an environment of its own."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.integration.workers.processes import WorkerProcess
from tests.servers import PATIENCE_S
from tests.servers.leaks import printed

BSO = Path(sys.executable).with_name("bso")


@dataclass
class Command:
    """``bso`` with the environment of one user, whose state directory is the test's own."""

    environment: dict[str, str]
    started: list[subprocess.Popen[Any]] = field(default_factory=list)

    def __call__(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run to the end, whatever the end is."""
        done = subprocess.run(
            [BSO, *map(str, arguments)],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        printed(done.stdout, done.stderr)
        return done

    def ok(self, *arguments: object, **environment: str) -> str:
        """Run to a good end; what it printed."""
        done = self(*arguments, **environment)
        assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *arguments: object, **environment: str) -> Any:
        """Run with --json to a good end; the object that it printed."""
        own = arguments.index("--") if "--" in arguments else len(arguments)
        return json.loads(self.ok(*arguments[:own], "--json", *arguments[own:], **environment))

    def lines(self, *arguments: object, **environment: str) -> list[Any]:
        """Run to a good end; the JSON objects that it printed, one a line."""
        return [json.loads(line) for line in self.ok(*arguments, **environment).splitlines()]

    def refused(self, *arguments: object, code: int = 1, **environment: str) -> str:
        """Run to a bad end; the one sentence that says why."""
        done = self(*arguments, **environment)
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return " ".join(done.stderr.split())

    def start_in_terminal(self, *arguments: object) -> tuple[subprocess.Popen[bytes], int]:
        """Start as a shell would, in the foreground of a terminal: what is written to the descriptor is typed."""
        typed, terminal = pty.openpty()
        take_over = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        command = [
            sys.executable,
            "-c",
            take_over + "os.execv(sys.argv[1], sys.argv[1:])",
            str(BSO),
            *map(str, arguments),
        ]
        process = subprocess.Popen(command, env=self.environment, stdin=terminal, stdout=terminal, stderr=terminal)
        os.close(terminal)
        self.started.append(process)
        return process, typed

    def start(self, *arguments: object, stdout: Any = subprocess.PIPE, **environment: str) -> subprocess.Popen[str]:
        """Start and leave running; it is killed after the test, with all that it has started."""
        process = subprocess.Popen(
            [BSO, *map(str, arguments)],
            env=self.environment | environment,
            stdout=stdout,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def kill_all(self) -> None:
        """Kill what was started and all of its group: a child that lived on would hold the pipes open for ever."""
        for process in self.started:
            process.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            printed(*process.communicate())


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def bso(state_dir: Path) -> Iterator[Command]:
    """The command, with an empty state directory and none of this process' BSO_ settings."""
    command = command_in(state_dir)
    yield command
    command.kill_all()


def command_in(state_dir: Path) -> Command:
    """The command with a state directory."""
    return Command(
        {**_without_settings(os.environ), "BSO_STATE_DIR": str(state_dir), "BSO_ENERGY": "assumed", "COLUMNS": "200"}
    )


def started_worker(log: Path, amqp_url: str, database_url: str) -> WorkerProcess:
    """``bso worker``, when it takes commands: who asks its health pages starts no process for each look."""
    environ = {"BSO_URL": amqp_url, "BSO_DATABASE_URL": database_url, "BSO_HEALTH_PORT": "0", "BSO_LOG_FORMAT": "json"}
    return WorkerProcess(log, environ, program=(str(BSO), "worker")).ready()


def _without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith("BSO_")}


_TRAINING = """
import os, signal, sys, threading
from bso_client import BatchSizeOptimizer, JobSpec

how, *rest = sys.argv[1:]
spec = JobSpec(job_id=os.environ.get("BSO_JOB_ID", "toy"), batch_sizes=[8, 16, 32], default_batch_size=16,
               target_metric=0.9, max_epochs=4, beta_knob=None)  # it takes no time at all: its costs are noise
bso = BatchSizeOptimizer(spec)
with bso.relaunching():
    batch_size = bso.get_batch_size()
    bso.on_train_begin()
    for epoch in range(1, 5):
        if epoch == 2 and how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if epoch == 2 and how == "crashes":
            raise RuntimeError("the data are gone")
        if epoch == 2 and how == "waits":
            open(rest[0], "w").close()
            threading.Event().wait()
        if epoch == 2 and how == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open(rest[0], "w").close()
            threading.Event().wait()
        fails = how == "fails" and batch_size == 16
        bso.on_evaluate(0.1 if fails else 0.3 * epoch)
        if bso.training_finished:
            break
"""


@pytest.fixture(scope="session")
def training(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of a training script with the flat methods; its argument says how it goes."""
    script = tmp_path_factory.mktemp("training") / "train.py"
    script.write_text(_TRAINING)
    return [sys.executable, str(script)]
