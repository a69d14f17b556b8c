"""The life of a worker process: starting in any order, health pages, draining, crashing."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from yarl import URL

from bso.domain.commands import RegisterJob
from bso.storage import SqlStore
from bso_broker.errors import InvalidBrokerUrl
from bso_migrations import upgrade
from bso_workers.bootstrap import serve
from bso_workers.settings import WorkerSettings
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.processes import WorkerProcess
from tests.integration.workers.recurrences import SPEC, Queue, audit, new_job, recur_at_once, register
from tests.servers import PATIENCE_S, TcpProxy, eventually_async
from tools.private_servers import MariaDB, RabbitMQ

NOBODY = "mysql+asyncmy://root@127.0.0.1:1/bso"


async def test_a_worker_waits_for_the_migration(mysql_url: str, ask: Queue, start_worker: StartWorker) -> None:
    worker = start_worker().started()
    (line, *_) = worker.logged("waiting_for_database")
    assert "bso migrate" in line["reason"]
    status, page = worker.page("readyz")
    assert status == 503
    assert "bso migrate" in json.loads(page)["reasons"]["database"]
    assert worker.page("livez")[0] == 200
    await upgrade(mysql_url)
    worker.ready()
    await register(ask, new_job())


async def test_a_worker_whose_login_the_broker_refuses_does_not_say_that_it_is_ready(
    amqp_url: str, migrated_url: str, start_worker: StartWorker
) -> None:
    worker = start_worker(amqp_url=str(URL(amqp_url).with_password("wrong"))).started()
    worker.until(lambda: "refuses user" in worker.reasons().get("broker", ""))
    worker.logged("intake_open")
    assert "ready" not in {line["action"] for line in worker.lines()}


async def test_connections_to_a_database_far_away_are_open_before_commands_need_them(
    migrated_url: str, tcp_proxy: Callable[[str], TcpProxy], start_worker: StartWorker
) -> None:
    proxy = tcp_proxy(migrated_url)
    start_worker(database_url=proxy.url, check_interval_s=0.2).ready()
    assert proxy.connections < 8
    proxy.delay(0.15)
    await eventually_async(lambda: proxy.connections >= 8, what="a connection for each batch under way")


@pytest.mark.slow
async def test_a_worker_waits_for_the_broker_and_the_database(
    breakable_rabbitmq: RabbitMQ, breakable_mariadb: MariaDB, start_worker: StartWorker
) -> None:
    amqp_url, database_url = breakable_rabbitmq.create_vhost(), breakable_mariadb.create_database()
    await upgrade(database_url)
    breakable_mariadb.stop()
    breakable_rabbitmq.stop()
    worker = start_worker(amqp_url=amqp_url, database_url=database_url).started()
    worker.until(lambda: "database" in worker.reasons())
    assert worker.page("livez")[0] == 200
    breakable_mariadb.start()
    worker.until(lambda: set(worker.reasons()) == {"broker"})
    assert worker.metric("bso_ready") == 0
    breakable_rabbitmq.start()
    worker.ready()
    assert worker.metric("bso_ready") == 1
    assert len(worker.lines("waiting_for_database")) < 10


async def test_health_is_not_told_to_other_addresses_and_pages(store: SqlStore, start_worker: StartWorker) -> None:
    worker = start_worker().ready()
    assert worker.page("elsewhere")[0] == 404
    assert json.loads(worker.page("livez")[1]) == {"alive": True, "reasons": {}}
    assert json.loads(worker.page("readyz")[1]) == {"ready": True, "reasons": {}}
    for name in ("bso_commands_total", "bso_batch_commands_bucket", "bso_batch_seconds_count", "process_cpu_seconds"):
        assert f"{name}" in worker.page("metrics")[1]


async def test_a_stuck_event_loop_is_not_alive(store: SqlStore, start_worker: StartWorker) -> None:
    worker = start_worker().ready()
    worker.process.send_signal(signal.SIGSTOP)  # all that a probe can see of a loop that does not turn
    try:
        assert worker.page("livez", timeout_s=1.0)[0] == 0
    finally:
        worker.process.send_signal(signal.SIGCONT)
    assert worker.page("livez")[0] == 200


async def test_sigterm_drains_with_no_answer_lost_or_doubled(
    store: SqlStore, ask: Queue, start_worker: StartWorker
) -> None:
    first, second = (start_worker(drain_timeout_s=PATIENCE_S) for _ in range(2))
    for worker in (first, second):
        worker.ready()
    job = new_job()
    await register(ask, job)
    load = asyncio.create_task(recur_at_once(ask, job, at_once=8, trials=80))
    await eventually_async(lambda: first.metric("bso_commands_total") > 20)
    first.terminate()
    assert await asyncio.to_thread(first.wait) == 0
    assert first.lines("draining")
    assert first.lines("ended")
    assert not first.lines("drained_late")
    assert await load == await audit(store, job)


async def test_an_idle_worker_ends_at_once(store: SqlStore, start_worker: StartWorker) -> None:
    worker = start_worker(drain_timeout_s=10 * PATIENCE_S).ready()
    worker.process.send_signal(signal.SIGINT)
    assert worker.wait() == 0


async def test_a_second_signal_ends_the_process_at_once(
    breakable_mariadb: MariaDB, ask: Queue, start_worker: StartWorker
) -> None:
    database_url = breakable_mariadb.create_database()
    await upgrade(database_url)
    endless = {"drain_timeout_s": 10 * PATIENCE_S, "database_timeout_s": 10 * PATIENCE_S}
    worker = start_worker(database_url=database_url, **endless).ready()
    job = new_job()
    breakable_mariadb.freeze()
    stuck = asyncio.create_task(ask(job, RegisterJob(spec=SPEC)))
    await eventually_async(lambda: worker.metric("bso_batch_commands_count") == 1)
    worker.terminate()
    worker.logged("draining")
    assert worker.process.poll() is None
    worker.terminate()
    assert worker.wait() == -signal.SIGTERM
    stuck.cancel()


async def test_what_cannot_be_drained_in_time_stays_with_the_broker(
    breakable_mariadb: MariaDB, ask: Queue, start_worker: StartWorker
) -> None:
    database_url = breakable_mariadb.create_database()
    await upgrade(database_url)
    first = start_worker(database_url=database_url, drain_timeout_s=0.5).ready()
    job = new_job()
    breakable_mariadb.freeze()
    pending = asyncio.create_task(register(ask, job))
    await eventually_async(lambda: first.metric("bso_batch_commands_count") == 1)
    first.terminate()
    assert await asyncio.to_thread(first.wait) == 0
    breakable_mariadb.thaw()
    start_worker(database_url=database_url).ready()
    assert (await pending).job_id == job


@pytest.mark.parametrize(
    ("environ", "hint"),
    [
        ({}, "BSO_DATABASE_URL"),
        ({"BSO_DATABASE_URL": "oracle://x/y", "BSO_AMQP_URL": "amqp://127.0.0.1"}, "oracle"),
    ],
)
async def test_a_worker_started_with_wrong_settings_says_so_and_ends(
    tmp_path: Path, environ: dict[str, str], hint: str
) -> None:
    worker = WorkerProcess(tmp_path / "worker.log", environ)
    assert worker.wait() == 2, worker.text()
    assert hint in worker.text()
    assert "Traceback" not in worker.text()


async def test_a_broker_address_that_is_none_is_a_clear_error() -> None:
    settings = WorkerSettings(database_url=NOBODY, amqp_url="http://127.0.0.1", health_port=0)
    with pytest.raises(InvalidBrokerUrl, match="amqp://"):
        await serve(settings, until=_never)


async def _never() -> str:
    raise AssertionError("nothing runs")


async def test_a_taken_port_is_a_clear_error(store: SqlStore, start_worker: StartWorker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        worker = start_worker(health_port=taken.getsockname()[1])
        assert worker.wait() == 2
    assert "BSO_HEALTH_PORT" in worker.lines("misconfigured")[0]["reason"]


async def test_a_command_loop_that_fails_takes_the_process_down_and_says_why(
    store: SqlStore, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker(program=(str(_broken(tmp_path, "worker", "CommandWorker", "run")),))
    assert worker.wait() == 1
    (line,) = worker.lines("crashed")
    assert "ZeroDivisionError: a bug" in line["exception"]


async def test_any_other_loop_that_fails_is_begun_again_and_counted_and_logged_once(
    store: SqlStore, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker(program=(str(_broken(tmp_path, "relay", "Relay", "relay")),))
    await eventually_async(
        lambda: worker.metric("bso_unforeseen_errors_total", part="relay") > 1, what="a loop that goes on"
    )
    (line,) = worker.lines("unforeseen_error")
    assert "ZeroDivisionError: a bug" in line["exception"]
    assert worker.process.poll() is None


def _broken(folder: Path, module: str, class_name: str, method: str) -> Path:
    """A worker program with a bug in one method."""
    program = folder / "broken.py"
    program.write_text(
        "import sys\n"
        f"from bso_workers import {module}\n"
        "from bso_workers.__main__ import main\n"
        f"class Broken({module}.{class_name}):\n"
        f"    async def {method}(self):\n"
        "        raise ZeroDivisionError('a bug')\n"
        "import bso_workers.bootstrap as bootstrap\n"
        f"bootstrap.{class_name} = Broken\n"
        "sys.exit(main())\n",
        encoding="utf-8",
    )
    return program


def test_importing_every_module_needs_no_environment_and_no_network() -> None:
    code = (
        "import bso_workers, importlib, pkgutil, socket\n"
        "socket.socket.connect = socket.getaddrinfo = None\n"
        "for module in pkgutil.iter_modules(bso_workers.__path__, 'bso_workers.'):\n"
        "    print(importlib.import_module(module.name).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, env={}, timeout=PATIENCE_S, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert {"bso_workers.bootstrap", "bso_workers.worker"} <= set(done.stdout.split())
