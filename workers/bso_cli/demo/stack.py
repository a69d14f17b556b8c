"""A whole bso of one's own for the time of a demonstration: RabbitMQ, MariaDB and workers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bso.domain.errors import BsoError, Misconfigured, Retryable

READY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 30.0
LOOK_S = 0.1

Say = Callable[[str], None]


class WorkerDied(BsoError):
    """A worker ended by itself; the message holds its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Where a running stack is reached."""

    amqp_url: str
    database_url: str


@contextmanager
def running_stack(*, workers: int, say: Say) -> Iterator[Stack]:
    """Start everything, and end everything on leaving. Raises Misconfigured where a server is not installed."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bso-demo-")))
        say("starting a private RabbitMQ and a private MariaDB")
        place = _start_servers(stack)
        environment = {**os.environ, "BSO_DATABASE_URL": place.database_url, "BSO_AMQP_URL": place.amqp_url}
        environment |= {"BSO_HEALTH_PORT": "0", "BSO_LOG_FORMAT": "json"}
        say("bso migrate")
        _migrate(environment)
        crew = []
        for number in range(1, workers + 1):
            say(f"bso worker ({number} of {workers})")
            log = folder / f"worker-{number}.log"
            crew.append(_Worker(stack.enter_context(_worker(environment, log)), log))
        _wait_until_all_consume(place.amqp_url, crew)
        yield place


@dataclass(frozen=True, slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    log: Path


def _start_servers(stack: ExitStack) -> Stack:
    try:
        from tools.private_servers import MariaDB, RabbitMQ, ServerFailed, ServerMissing
    except ImportError as error:
        raise Misconfigured(
            "private servers are started by the source checkout, and this bso was installed without it: run "
            "`make demo-queue` in a checkout, or give servers of your own, with workers running: "
            "bso demo --url amqp://... --database-url mysql://..."
        ) from error
    broker, database = RabbitMQ(), MariaDB()
    stack.callback(broker.close)
    stack.callback(database.close)
    try:
        with ThreadPoolExecutor(2) as both:
            started = both.submit(broker.start), both.submit(database.start)
            for server in started:
                server.result()
        return Stack(amqp_url=broker.create_vhost(), database_url=database.create_database())
    except (ServerMissing, ServerFailed) as error:
        raise Misconfigured(str(error)) from error


def _migrate(environment: dict[str, str]) -> None:
    done = subprocess.run([*_bso(), "migrate"], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Misconfigured(f"bso migrate failed: {done.stderr.strip() or done.stdout.strip()}")


@contextmanager
def _worker(environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as stream:
        # A session of its own: Ctrl-C is for the demonstration, which then stops its workers in order.
        process = subprocess.Popen(
            [*_bso(), "worker"], env=environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_all_consume(amqp_url: str, crew: list[_Worker]) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while asyncio.run(_consumers(amqp_url)) < len(crew):
        for worker in crew:
            if worker.process.poll() is not None:
                raise WorkerDied(f"a worker ended with {worker.process.returncode}: {_last_words(worker.log)}")
        if time.monotonic() > deadline:
            raise WorkerDied(f"the workers are not ready after {READY_TIMEOUT_S:g} s: {_last_words(crew[0].log)}")
        time.sleep(LOOK_S)


async def _consumers(amqp_url: str) -> int:
    from bso_broker.connection import BrokerAddress, connect
    from bso_broker.declaration import depth_of
    from bso_broker.topology import COMMAND_QUEUE

    try:
        connection = await connect(BrokerAddress(url=amqp_url), name="bso demo")
    except Retryable:
        return 0
    try:
        async with asyncio.timeout(5):
            return (await depth_of(connection, COMMAND_QUEUE)).consumers
    except Exception:  # noqa: BLE001  # not declared yet, in whatever words the broker has for it
        return 0
    finally:
        await connection.close()


def _last_words(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-600:]


def _bso() -> list[str]:
    return [sys.executable, "-m", "bso_cli"]
