"""A broker that restarts under many trainings: all come back, one after the other, and nothing of theirs is lost."""

import asyncio
from pathlib import Path

import pytest

from bso_migrations import upgrade
from tests.benchmarks.crowd.crowd import Crowd
from tests.benchmarks.crowd.outage import strike
from tests.benchmarks.crowd.wholes import Wholes
from tests.integration.workers.fixtures import StartWorker
from tools.private_servers import MariaDB, RabbitMQ

TRAININGS = 100
WHOLE_TRAININGS = 4


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["stop", "kill", "cut off"])
async def test_all_come_back_and_nothing_is_lost(
    breakable_rabbitmq: RabbitMQ, breakable_mariadb: MariaDB, start_worker: StartWorker, tmp_path: Path, how: str
) -> None:
    rabbitmq, database_url = breakable_rabbitmq, breakable_mariadb.create_database()
    amqp_url = rabbitmq.create_vhost()
    await upgrade(database_url)
    start_worker(amqp_url=amqp_url, database_url=database_url, lease_s=60.0).ready()

    def cut_off() -> None:
        rabbitmq.management.close_connections(amqp_url)

    end = {"stop": rabbitmq.stop, "kill": rabbitmq.kill, "cut off": cut_off}[how]

    def train_through_it() -> None:
        with (
            Crowd(TRAININGS, amqp_url=amqp_url, folder=tmp_path) as crowd,
            Wholes(WHOLE_TRAININGS, amqp_url=amqp_url, folder=tmp_path, epoch_s=1.0) as wholes,
        ):
            recovery = strike(crowd, rabbitmq, end, until_renewed=True)
            assert recovery.per_second < TRAININGS, "they do not all come in the same second"
            wholes.stop()
            assert asyncio.run(crowd.audit(database_url)) == TRAININGS
            assert asyncio.run(wholes.audit(database_url)) > 0

    await asyncio.to_thread(train_through_it)
