"""Gateways as processes of their own, over a SQLite file and over a broker with a worker."""

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, Self

import pytest

from bso_broker.connection import login_of
from bso_migrations import upgrade
from tests.integration.workers.fixtures import StartWorker, migrated_url, start_worker
from tests.integration.workers.processes import WorkerProcess
from tests.servers import PATIENCE_S
from tools.private_servers import MariaDB, RabbitMQ

__all__ = ["migrated_url", "start_worker"]  # fixtures

SPEC: dict[str, Any] = {
    "job_id_prefix": "mnist",
    "batch_sizes": [64, 32, 128],
    "default_batch_size": 64,
    "target_metric": 0.9,
    "max_epochs": 10,
    "max_power": 300.0,
    "number_of_gpus": 1,
    "gpu_model": "A40",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def value(self) -> Any:
        """Its body."""
        return json.loads(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One server-sent event."""

    id: str
    name: str
    value: Any


class Stream:
    """Server-sent events, as they arrive."""

    def __init__(self, answer: HTTPResponse) -> None:
        self._answer = answer

    def events(self, count: int) -> list[Event]:
        """The next events; comments are left out."""
        found: list[Event] = []
        fields: dict[str, str] = {}
        while len(found) < count:
            line = self._answer.readline().decode().rstrip("\n")
            name, _, text = line.partition(": ")
            if name:
                fields[name] = text
            elif "data" in fields:
                found.append(Event(id=fields["id"], name=fields["event"], value=json.loads(fields["data"])))
                fields = {}
            else:
                fields = {}
        return found

    def line(self, beginning: str) -> str:
        """The rest of the next line that begins so."""
        while not (line := self._answer.readline().decode()).startswith(beginning):
            assert line, f"the stream has ended without a line that begins with {beginning!r}"
        return line.rstrip("\n").removeprefix(beginning)

    def ends(self) -> bool:
        """Whether the gateway ends it, after whatever is left."""
        self._answer.read()
        return True


class Gateway:
    """A gateway process, and requests to it as Zeus' client sends them: JSON without a Content-Type.

    Requests are about a job of its own, unless they name another one.
    """

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self.job_id = f"mnist-{uuid.uuid4().hex[:12]}"
        self.port: int = process.logged("started")[0]["port"]
        self.patience_s = PATIENCE_S  # for an answer

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answered:
        """The answer to one request on a connection of its own."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = HTTPConnection("127.0.0.1", self.port, timeout=self.patience_s)
        try:
            named = {name.replace("_", "-"): text for name, text in headers.items()}
            connection.request(method, path, body=data, headers=named)
            answer = connection.getresponse()
            text = answer.read().decode()
            given = {name.lower(): value for name, value in answer.getheaders()}
            return Answered(status=answer.status, headers=given, text=text)
        finally:
            connection.close()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def stream(self, path: str, **headers: str) -> Iterator["Stream"]:
        """Server-sent events."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        connection.request("GET", path, headers={"Accept": "text/event-stream", **named})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        try:
            yield Stream(answer)
        finally:
            connection.close()

    def register(self, **spec: Any) -> Answered:
        """Register a job."""
        return self.ask("POST", "/jobs", SPEC | {"job_id": self.job_id} | spec)

    def begin(self, job_id: str | None = None) -> dict[str, Any]:
        """Begin a trial."""
        answer = self.ask("GET", f"/jobs/batch_size?job_id={job_id or self.job_id}")
        assert answer.status == 200, answer
        begun: dict[str, Any] = answer.value
        return begun

    def report(self, trial: Mapping[str, Any], epoch: int, metric: float = 0.1, **more: Any) -> Answered:
        """Report an epoch of a minute and a kilojoule."""
        numbers = {"current_epoch": epoch, "time": 60.0 * epoch, "energy": 1000.0 * epoch, "metric": metric}
        return self.ask("POST", "/report", {**trial, **numbers, **more})

    def end(self, trial: Mapping[str, Any]) -> Answered:
        """Say that a training has ended."""
        return self.ask("PATCH", "/trials", trial)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()


StartGateway = Callable[..., Gateway]


def gateway_process(log: Path, url: str, **settings: object) -> WorkerProcess:
    """A new gateway."""
    environ = {"BSO_URL": url, "BSO_GATEWAY_PORT": "0", "BSO_GATEWAY_LOG_FORMAT": "json"}
    environ |= {f"BSO_GATEWAY_{name.upper()}": str(value) for name, value in settings.items()}
    return WorkerProcess(log, environ, program=("-m", "bso_cli", "serve"))


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[StartGateway]:
    """Starts gateways over ``url``, a SQLite file unless given; other arguments are settings."""
    started: list[WorkerProcess] = []

    def start(*, url: str | None = None, **settings: object) -> Gateway:
        log = tmp_path / f"gateway-{len(started) + 1}.log"
        started.append(gateway_process(log, url or f"sqlite:///{tmp_path / 'bso.sqlite'}", **settings))
        return Gateway(started[-1])

    yield start
    for process in started:
        process.stop()


@pytest.fixture(params=["sqlite", pytest.param("broker", marks=pytest.mark.slow)])
def start(request: pytest.FixtureRequest, start_gateway: StartGateway) -> StartGateway:
    """Starts a gateway that decides by itself, or over a broker with a worker."""
    if request.param == "sqlite":
        return start_gateway
    request.getfixturevalue("migrated_url")
    url: str = request.getfixturevalue("amqp_url")
    start_one: StartWorker = request.getfixturevalue("start_worker")
    start_one(gateways=login_of(url)).ready()
    return lambda **settings: start_gateway(url=url, **settings)


@pytest.fixture(scope="session")
def over_a_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """A gateway over a SQLite file, for all tests that stop none."""
    folder = tmp_path_factory.mktemp("gateway")
    process = gateway_process(folder / "gateway.log", f"sqlite:///{folder / 'bso.sqlite'}")
    yield process
    process.stop()


@pytest.fixture(scope="session")
def over_a_broker(
    rabbitmq_server: RabbitMQ, mariadb_server: MariaDB, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    """A gateway in front of a worker, for all tests that stop none."""
    folder = tmp_path_factory.mktemp("gateway")
    amqp_url, database_url = rabbitmq_server.start().create_vhost(), mariadb_server.start().create_database()
    asyncio.run(upgrade(database_url))
    environ = {"BSO_AMQP_URL": amqp_url, "BSO_DATABASE_URL": database_url, "BSO_HEALTH_PORT": "0"}
    environ |= {"BSO_LOG_FORMAT": "json", "BSO_GATEWAYS": login_of(amqp_url)}
    worker = WorkerProcess(folder / "worker.log", environ).ready()
    process = gateway_process(folder / "gateway.log", amqp_url)
    yield process
    process.stop()
    worker.stop()


@pytest.fixture
def alone(over_a_file: WorkerProcess) -> Gateway:
    """A gateway with the default settings over a file, and a new job_id."""
    return Gateway(over_a_file)


@pytest.fixture(params=["over_a_file", "over_a_broker"])
def gateway(request: pytest.FixtureRequest) -> Gateway:
    """A gateway with the default settings, over a file and over a broker, and a new job_id."""
    return Gateway(request.getfixturevalue(request.param))
