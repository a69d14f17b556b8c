"""A server is restarted in order: the workers' logs have no error, and say when they were ready again."""

import asyncio

import pytest

from bso_broker.rabbit import RabbitBroker
from bso_migrations import upgrade
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.recurrences import Load, Queue, new_job, register
from tools.private_servers import MariaDB, PrivateServer, RabbitMQ


@pytest.mark.parametrize("kind", [pytest.param("rabbitmq", marks=pytest.mark.slow), "mariadb"])
async def test_it_logs_no_error_and_when_it_was_ready(
    breakable_rabbitmq: RabbitMQ, breakable_mariadb: MariaDB, start_worker: StartWorker, kind: str
) -> None:
    amqp_url, database_url = breakable_rabbitmq.create_vhost(), breakable_mariadb.create_database()
    await upgrade(database_url)
    worker = start_worker(amqp_url=amqp_url, database_url=database_url).ready()
    server: PrivateServer = {"rabbitmq": breakable_rabbitmq, "mariadb": breakable_mariadb}[kind]
    obstacles = {"rabbitmq": {"broker", "publishing", "replies", "events"}, "mariadb": {"database"}}[kind]
    job = new_job()
    async with RabbitBroker(amqp_url) as broker, Queue(broker=broker, is_patient=True) as ask:
        await register(ask, job)
        async with Load(ask=ask, job_id=job) as load:
            for _ in range(2):
                await load.progress(5)
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(worker.until, lambda: worker.page("readyz")[0] == 503)
                await asyncio.to_thread(server.start)
                await asyncio.to_thread(worker.ready)
            await load.progress(5)
    worker.terminate()
    assert worker.wait() == 0
    assert [line for line in worker.lines() if line["level"] not in ("info", "warning")] == []
    turns = [line for line in worker.lines() if line["action"] in ("ready", "not_ready")]
    turns = [line for line in turns if "worker" not in line.get("reasons", {})]  # it ends
    assert [line["action"] for line in turns] == ["ready", "not_ready", "ready", "not_ready", "ready"]
    for line in turns:
        assert line["action"] == "ready" or obstacles & set(line["reasons"]), line
    texts = worker.log.read_text(encoding="utf-8").splitlines()
    assert len(texts) == len(worker.lines()), "every line is JSON"
    assert {tuple(line)[:5] for line in worker.lines()} == {("timestamp", "level", "logger", "action", "message")}
