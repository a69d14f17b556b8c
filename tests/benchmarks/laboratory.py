"""Where benchmarks run: how thoroughly, and on which private servers."""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import make_url

from bso_migrations import upgrade
from tests.benchmarks.zeus import peer as zeus
from tests.integration.workers.processes import WorkerProcess
from tools.private_servers import MariaDB, PrivateServer, RabbitMQ
from tools.private_servers.ports import ClaimedPorts

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured: repetitions, of which medians are taken, and the share of the usual work in each."""

    repetitions: int
    share: float = 1.0

    def of(self, usual: int) -> int:
        """A number of operations, cut down."""
        return max(1, round(usual * self.share))


THOROUGH = Effort(repetitions=5)
QUICK = Effort(repetitions=2, share=0.1)


class Laboratory:
    """Private servers, started when a benchmark first asks for them, and workers; all gone at the end of ``with``."""

    def __init__(self, effort: Effort, *, say: Callable[[str], None]) -> None:
        self.effort = effort
        self.say = say
        self._stack = ExitStack()
        self._started = 0
        self.rows: list[dict[str, Any]] = []
        """What has been measured of whole paths, for build/bench.json."""

    def __enter__(self) -> Self:
        self._stack.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    @cached_property
    def folder(self) -> Path:
        """A folder that is removed at the end, on the disk that the servers write to."""
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bso-bench-")))

    @cached_property
    def mariadb(self) -> MariaDB:
        """A MariaDB that makes every commit durable, as it does by default."""
        return self._stack.enter_context(MariaDB())

    @cached_property
    def rabbitmq(self) -> RabbitMQ:
        """A RabbitMQ."""
        return self._stack.enter_context(RabbitMQ())

    def new_database(self) -> str:
        """The URL of a new database on MariaDB, with tables."""
        url = self.mariadb.create_database()
        asyncio.run(upgrade(url))
        return url

    def start_workers(self, count: int, *, amqp_url: str, database_url: str, **settings: object) -> list[WorkerProcess]:
        """Workers as they run in production, ready; ``settings`` are those of `bso worker` (lease_s=60)."""
        workers = [self._start_worker(amqp_url, database_url, settings) for _ in range(count)]
        return [worker.ready() for worker in workers]

    def start_program(self, module: str, *, amqp_url: str) -> WorkerProcess:
        """A module of ours as a process, ready."""
        environ = {"BSO_AMQP_URL": amqp_url}
        program = WorkerProcess(self._new_log(), environ, program=("-m", module))
        self._stack.callback(program.stop)
        return program.started()

    def start_zeus(self) -> tuple[WorkerProcess, int]:
        """Zeus' server on a database of its own, and its port. Raises SubprocessError, OSError without its packages."""
        interpreter = str(zeus.python().absolute())
        url = make_url(self.mariadb.create_database()).set(drivername="mysql+aiomysql")
        environ = {"ZEUS_BSO_DATABASE_URL": url.render_as_string(hide_password=False), "PYTHONPATH": ""}
        with ClaimedPorts(1) as ports:
            port = ports.numbers[0]
            program = (str(Path(zeus.__file__).with_name("server.py")), str(port))
            server = WorkerProcess(self._new_log(), environ, program=program, interpreter=interpreter)
            self._stack.callback(server.stop)
            return server.started(), port

    def _start_worker(self, amqp_url: str, database_url: str, settings: Mapping[str, object]) -> WorkerProcess:
        environ = {
            "BSO_AMQP_URL": amqp_url,
            "BSO_DATABASE_URL": database_url,
            "BSO_HEALTH_PORT": "0",
            "BSO_LOG_FORMAT": "json",
            **{f"BSO_{name.upper()}": str(value) for name, value in settings.items()},
        }
        worker = WorkerProcess(self._new_log(), environ)
        self._stack.callback(worker.stop)
        return worker

    def _new_log(self) -> Path:
        self._started += 1
        return self.folder / f"process-{self._started}.log"


def pid_of(server: PrivateServer) -> int:
    """The process of a private server; RabbitMQ's has children."""
    return server.processes[0]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it on the loop that workers use: uvloop where it is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(coroutine)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(coroutine)
