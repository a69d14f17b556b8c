"""Where benchmarks run: how thoroughly, and on which private servers."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import make_url

from bso_broker.topology import QUORUM
from bso_broker.url_options import COMMAND_QUEUE_TYPE
from bso_migrations import upgrade
from tests.benchmarks.journeys import Driven, Route
from tests.benchmarks.rows import Row
from tests.benchmarks.zeus import peer as zeus
from tests.integration.workers.processes import WorkerProcess
from tools.private_servers import MariaDB, PrivateServer, RabbitMQ
from tools.private_servers.ports import ClaimedPorts

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured: repetitions, of which medians are taken, and the share of the usual work in each.

    ``patience_s``: for so long in all, windows are measured again that foreign processes have disturbed.
    """

    repetitions: int
    share: float = 1.0
    patience_s: float = 240.0

    @property
    def is_quick(self) -> bool:
        """Whether less is measured than usual."""
        return self.share < 1

    def of(self, usual: int) -> int:
        """A number of operations, cut down."""
        return max(1, round(usual * self.share))


THOROUGH = Effort(repetitions=5)
QUICK = Effort(repetitions=2, share=0.1, patience_s=20.0)
_MOST_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Workers with a queue and a database."""

    workers: Sequence[WorkerProcess]
    route: Route


class Laboratory:
    """Private servers, started when a benchmark first asks for them, and workers; all gone at the end of ``with``."""

    def __init__(self, effort: Effort, *, say: Callable[[str], None]) -> None:
        self.effort = effort
        self.say = say
        self._stack = ExitStack()
        self._started = 0
        self._crews: dict[int, Crew] = {}
        self.patience_s = effort.patience_s
        self.rows: list[Row] = []
        """What has been measured, for build/bench.json."""

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

    def crew(self, count: int) -> Crew:
        """So many workers on one queue and one database, the same for all benchmarks."""
        if count not in self._crews:
            self._crews[count] = self.new_crew(count)
        return self._crews[count]

    def new_crew(self, count: int, *, database_url: str | None = None, command_queue: str = QUORUM) -> Crew:
        """So many new workers on a new queue of this type, on a new database if none is given; ready."""
        amqp_url, database_url = self.rabbitmq.create_vhost(), database_url or self.new_database()
        of_workers = f"{amqp_url}?{COMMAND_QUEUE_TYPE}={command_queue}"
        workers = [self.start_worker(amqp_url=of_workers, database_url=database_url) for _ in range(count)]
        pids = {
            "worker": [worker.ready().process.pid for worker in workers],
            "broker": [pid_of(self.rabbitmq)],
            "database": [pid_of(self.mariadb)],
        }
        route = Route(
            amqp_url=amqp_url, pids=pids, database_url=database_url, workers=workers, commits=self.mariadb.commits
        )
        return Crew(workers=workers, route=route)

    def start_worker(self, *, amqp_url: str, database_url: str, **settings: object) -> WorkerProcess:
        """A worker as it runs in production, not ready yet; ``settings`` are those of `bso worker` (lease_s=60)."""
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

    async def in_turns(self, windows: Mapping[Key, Callable[[], Awaitable[Driven]]]) -> dict[Key, list[Driven]]:
        """What is measured in each window; they take turns, once in each repetition."""
        found: dict[Key, list[Driven]] = {key: [] for key in windows}
        for _ in range(self.effort.repetitions):
            for key, window in windows.items():
                found[key].append(await self.undisturbed(window))
        return found

    async def undisturbed(self, window: Callable[[], Awaitable[Driven]]) -> Driven:
        """Of up to three windows the first that no foreign process has disturbed, else the least disturbed."""
        tries = self.tries()
        while tries.want_more:
            tries.add(await window())
        return tries.best

    def tries(self) -> "Tries":
        """Windows that are measured again where foreign processes disturb them, while there is patience."""
        return Tries(laboratory=self)

    def start_program(self, module: str, *, amqp_url: str) -> WorkerProcess:
        """A module of ours as a process, ready."""
        environ = {"BSO_AMQP_URL": amqp_url}
        program = WorkerProcess(self._new_log(), environ, program=("-m", module))
        self._stack.callback(program.stop)
        return program.started()

    def start_gateway(self, url: str) -> WorkerProcess:
        """A gateway, listening; without a line in its log for each request, as Zeus' server is run."""
        environ = {
            "BSO_URL": url,
            "BSO_GATEWAY_PORT": "0",
            "BSO_GATEWAY_ACCESS_LOG": "false",
            # Connections are kept while the other paths are measured.
            "BSO_GATEWAY_KEEP_ALIVE_S": "3600",
            "BSO_GATEWAY_HEAD_TIMEOUT_S": "3600",
            "BSO_GATEWAY_LOG_FORMAT": "json",
        }
        gateway = WorkerProcess(self._new_log(), environ, program=("-m", "bso_cli", "serve"))
        self._stack.callback(gateway.stop)
        return gateway.started()

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

    def _new_log(self) -> Path:
        self._started += 1
        return self.folder / f"process-{self._started}.log"


@dataclass(kw_only=True)
class Tries:
    """The windows of one measurement."""

    laboratory: Laboratory
    found: list[Driven] = field(default_factory=list)
    _added_at_s: float = 0.0

    @property
    def want_more(self) -> bool:
        """Whether there is none yet, or all were disturbed."""
        if not self.found:
            return True
        return self.best.elapsed.is_disturbed and len(self.found) < _MOST_TRIES and self.laboratory.patience_s > 0

    def add(self, driven: Driven) -> None:
        """One more window; what all but the first take is taken from the laboratory's patience."""
        now_s = time.perf_counter()
        if self.found:
            self.laboratory.patience_s -= now_s - self._added_at_s
        self.found.append(driven)
        self._added_at_s = now_s

    @property
    def best(self) -> Driven:
        """The least disturbed."""
        return min(self.found, key=lambda one: one.elapsed.foreign_share)


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
