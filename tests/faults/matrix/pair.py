"""The pair of servers that a run uses: private ones, which can be broken, or given ones."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tests.servers import given
from tools.private_servers import Management, MariaDB, PostgreSQL, RabbitMQ, ServerMissing

Kind = Literal["mariadb", "postgresql", "given"]
SMALL_DISK_BYTES = 400_000_000


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A broker and a database server. What is None cannot be killed or frozen: it was given."""

    management: Management
    rabbitmq: RabbitMQ | None
    database: MariaDB | PostgreSQL | None
    broker_name: str
    database_name: str
    cluster: Sequence[RabbitMQ] = ()

    @property
    def is_breakable(self) -> bool:
        """Whether both servers may be killed, frozen, and changed."""
        return self.rabbitmq is not None and self.database is not None

    def create_database(self) -> str:
        """A new, empty database; its URL."""
        if self.database is not None:
            return self.database.create_database()
        assert given.DATABASE_URL is not None
        return given.create_database(given.DATABASE_URL)

    def drop_database(self, url: str) -> None:
        """Remove it, where the server is somebody else's."""
        if self.database is None:
            assert given.DATABASE_URL is not None
            given.drop_database(given.DATABASE_URL, url)

    def mend(self) -> None:
        """Start again what a scenario has left dead or frozen."""
        for server in (*self.cluster, self.rabbitmq, self.database):
            if server is None:
                continue
            if server.is_running:
                server.thaw()
            server.start()


@contextlib.contextmanager
def running_pair(kind: Kind) -> Iterator[Pair]:
    """Private servers of this kind, or those that the environment names."""
    if kind == "given":
        if given.AMQP_URL is None or given.AMQP_MANAGEMENT_URL is None or given.DATABASE_URL is None:
            raise SystemExit(
                "the given pair needs BSO_TEST_AMQP_URL, BSO_TEST_AMQP_MANAGEMENT_URL and BSO_TEST_DATABASE_URL"
            )
        management = Management(given.AMQP_MANAGEMENT_URL, given.AMQP_URL)
        name = os.environ.get("BSO_FAULTS_DATABASE", "MySQL")
        yield Pair(
            management=management, rabbitmq=None, database=None, broker_name=_version(management), database_name=name
        )
        return
    server: MariaDB | PostgreSQL = MariaDB() if kind == "mariadb" else PostgreSQL()
    with RabbitMQ() as rabbitmq, server as database:
        yield Pair(
            management=rabbitmq.management,
            rabbitmq=rabbitmq,
            database=database,
            broker_name=_version(rabbitmq.management),
            database_name="MariaDB" if kind == "mariadb" else "PostgreSQL",
        )


@contextlib.contextmanager
def of_three_nodes(pair: Pair) -> Iterator[Pair]:
    """The pair with a cluster of three RabbitMQ nodes; what a scenario asks of the broker goes to the third one."""
    first = RabbitMQ()
    second, third = RabbitMQ(leader=first), RabbitMQ(leader=first)
    with first, closing(second), closing(third):
        with ThreadPoolExecutor() as pool:  # each takes ten seconds
            list(pool.map(RabbitMQ.start, (second, third)))
        yield replace(pair, management=third.management, rabbitmq=third, cluster=(first, second))


@contextlib.contextmanager
def on_a_small_disk(pair: Pair) -> Iterator[Pair]:
    """The pair with a database whose disk can be filled. Needs root: the disk is one in memory."""
    server = MariaDB()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", server.folder], check=True)
    try:
        with server:
            yield replace(pair, database=server)
    finally:
        server.kill()
        subprocess.run(["umount", "--lazy", server.folder], check=True)
        server.close()


@contextlib.contextmanager
def with_another_clock(pair: Pair) -> Iterator[Pair]:
    """The pair with a database whose clock goes by the file ``clock`` in its folder, which says ``+2h``, say."""
    server = MariaDB()
    server.environ = faked_clock(server.folder / "clock")
    with server:
        yield replace(pair, database=server)


def faked_clock(clock: Path) -> dict[str, str]:
    """Variables of a process whose clock is ahead or behind by what stands in a file; its monotonic clock stays."""
    library = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
    if library is None:
        raise ServerMissing("no libfaketime on this machine; Debian has it in the package libfaketime")
    clock.write_text("+0")
    rules = {"FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1", "DONT_FAKE_MONOTONIC": "1"}
    return {"LD_PRELOAD": str(library), **rules}


def _version(management: Management) -> str:
    return f"RabbitMQ {management.request('GET', 'overview')['rabbitmq_version']}"
