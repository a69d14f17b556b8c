"""The servers that the other tests rely on keep what they promise."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import aio_pika
import pytest
import sqlalchemy as sa
from aiormq.exceptions import ChannelAccessRefused
from sqlalchemy.ext.asyncio import create_async_engine

from tests.servers import PATIENCE_S, eventually
from tools.private_servers import Management, MariaDB, PostgreSQL, RabbitMQ

STARTS_AND_DIES = """
import os, signal
from tools.private_servers import MariaDB
server = MariaDB().start()
print(server.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_each_kind_of_database_answers_and_is_empty(database_url: str) -> None:
    engine = create_async_engine(database_url)
    async with engine.begin() as connection:
        assert await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names()) == []
        await connection.execute(sa.text("CREATE TABLE job (job_id INTEGER)"))
    await engine.dispose()


def test_a_killed_mariadb_comes_back_with_what_was_committed(breakable_mariadb: MariaDB) -> None:
    database = breakable_mariadb.create_database().rpartition("/")[2]
    breakable_mariadb.execute(f"CREATE TABLE {database}.t (n INT); INSERT INTO {database}.t VALUES (7)")
    breakable_mariadb.kill()
    assert not breakable_mariadb.is_running
    breakable_mariadb.start()
    assert breakable_mariadb.execute(f"SELECT n FROM {database}.t") == "7\n"


def test_a_server_that_died_of_itself_comes_back_with_its_data_and_is_guarded_anew(breakable_mariadb: MariaDB) -> None:
    database = breakable_mariadb.create_database().rpartition("/")[2]
    first_guard = breakable_mariadb.guard
    os.kill(breakable_mariadb.processes[0], signal.SIGKILL)
    eventually(lambda: not breakable_mariadb.is_running)
    breakable_mariadb.start()
    assert first_guard is not None
    assert first_guard.poll() is not None
    assert database in breakable_mariadb.execute("SHOW DATABASES")


@pytest.mark.slow
def test_a_killed_postgresql_comes_back_with_what_was_committed(breakable_postgresql: PostgreSQL) -> None:
    breakable_postgresql.execute("CREATE TABLE kept AS SELECT 7 AS n")
    breakable_postgresql.kill()
    breakable_postgresql.start()
    assert breakable_postgresql.execute("SELECT n FROM kept") == "7\n"


def test_a_frozen_mariadb_answers_only_after_it_thaws(breakable_mariadb: MariaDB) -> None:
    breakable_mariadb.freeze()
    ping = ["mariadb-admin", "--no-defaults", f"--socket={breakable_mariadb.socket}", "ping"]
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(ping, timeout=0.3, check=False)
    breakable_mariadb.thaw()
    assert breakable_mariadb.execute("SELECT 1") == "1\n"


@pytest.mark.slow
async def test_a_killed_rabbitmq_comes_back_with_its_virtual_hosts_and_messages(breakable_rabbitmq: RabbitMQ) -> None:
    url = breakable_rabbitmq.create_vhost()
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    await channel.declare_queue("kept", durable=True)
    message = aio_pika.Message(b"here", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    await channel.default_exchange.publish(message, routing_key="kept")
    breakable_rabbitmq.kill()
    breakable_rabbitmq.start()

    connection = await aio_pika.connect(url)
    queue = await (await connection.channel()).declare_queue("kept", passive=True)
    kept = await queue.get(no_ack=True)
    assert kept.body == b"here"
    await connection.close()


async def test_a_user_may_do_only_what_it_was_permitted(amqp_url: str, rabbitmq_management: Management) -> None:
    nobody = rabbitmq_management.add_user(amqp_url, "reader", "s3cret/@", configure="^$", write="^$", read=".*")
    connection = await aio_pika.connect(nobody)
    channel = await connection.channel()
    with pytest.raises(ChannelAccessRefused):
        await channel.declare_queue("forbidden")
    await connection.close()


async def test_connections_closed_by_the_server_are_seen_by_the_client(
    amqp_url: str, rabbitmq_management: Management
) -> None:
    closed = asyncio.Event()
    connection = await aio_pika.connect(amqp_url)
    connection.close_callbacks.add(lambda *_: closed.set())
    eventually(lambda: rabbitmq_management.close_connections(amqp_url), what="the server knows the connection")
    await asyncio.wait_for(closed.wait(), PATIENCE_S)


def test_servers_die_with_the_process_that_started_them(mariadb_server: MariaDB) -> None:
    child = subprocess.Popen([sys.executable, "-c", STARTS_AND_DIES], stdout=subprocess.PIPE, text=True)
    output, _ = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == -signal.SIGKILL
    folder = Path(output.strip())
    eventually(lambda: not _processes_in(folder) and not folder.exists(), what="server and folder are gone")


def _processes_in(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.fspath(folder) in (process / "cmdline").read_text():
                found.append(process.name)
        except OSError:
            continue
    return found
