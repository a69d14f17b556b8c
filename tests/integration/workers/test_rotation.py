"""Each secret is replaced, by the page's commands, while commands flow: none is lost or refused."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from bso.storage import open_store
from bso_broker.rabbit import RabbitBroker
from bso_migrations import upgrade
from tests.integration.logins import Database
from tests.integration.shipped import statements_of
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.processes import WorkerProcess
from tests.integration.workers.recurrences import Load, Queue, audit, new_job, register
from tests.servers import eventually
from tools.private_servers import RabbitMQ, ServerFailed, new_password

OF_WORKERS = "The workers' login of the broker"


class Rotating:
    """A broker and its logins, whose names end with a word of this test's: they belong to the server."""

    def __init__(self, server: RabbitMQ, amqp_url: str) -> None:
        self.server, self.amqp_url, self.password = server, amqp_url, new_password()
        self._vhost, self._own = amqp_url.rpartition("/")[2], uuid.uuid4().hex[:6]

    def named(self, login: str) -> str:
        return f"{login}-{self._own}"

    def run(self, line: str, *, former: str = "", login: str = "") -> None:
        """Carry out a command of the page, for a login in the place of that of the page."""
        line = line.replace("-p bso ", f"-p {self._vhost} ").replace(
            "rabbitmqctl ", f"rabbitmqctl -n {self.server.node} "
        )
        if former:
            line = line.replace(f" {former}", f" {self.named(login)}")
        self.server.shell(line, typed=f"{self.password}\n")

    def url(self, login: str) -> str:
        return self.server.management.url_of(self._vhost, name=self.named(login), password=self.password)


@pytest.fixture
def rotating(rabbitmq_server: RabbitMQ, amqp_url: str) -> Iterator[Rotating]:
    broker = Rotating(rabbitmq_server, amqp_url)
    yield broker
    for login in ("bso-worker", "bso-worker-2", "vision", "bso-operator"):
        try:
            rabbitmq_server.management.request("DELETE", f"users/{broker.named(login)}")
        except ServerFailed:  # the test has deleted it, or never made it
            continue


@pytest.fixture(params=["mariadb_server", pytest.param("postgresql_server", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    with Database.made(request.getfixturevalue(request.param).start()) as made:
        yield made


class Fleet:
    """Two workers that read their secrets from files."""

    def __init__(self, folder: Path, start: StartWorker) -> None:
        self.amqp_url, self.database_url = folder / "amqp_url", folder / "database_url"
        self._start = start
        self._running: list[WorkerProcess] = []

    def write(self, *, amqp_url: str, database_url: str) -> None:
        self.amqp_url.write_text(f"{amqp_url}\n")
        self.database_url.write_text(f"{database_url}\n")

    def replace(self, *, operators: str) -> None:
        """Start new workers, one after the other, each before the former one in its place is ended."""
        former: list[WorkerProcess | None] = [*self._running] or [None, None]
        self._running = []
        for worker in former:
            files = {"amqp_url_file": self.amqp_url, "database_url_file": self.database_url}
            self._running.append(self._start(amqp_url="", database_url="", operators=operators, **files).ready())
            if worker is not None:
                worker.terminate()
                assert worker.wait() == 0


@pytest.mark.slow
async def test_the_logins_of_the_workers_are_replaced_while_commands_flow(
    rotating: Rotating, database: Database, start_worker: StartWorker, tmp_path: Path
) -> None:
    await upgrade(database.url("bso_migrate"))
    making, deleting = _two(statements_of(OF_WORKERS, language="bash"), "rabbitmqctl delete_user")
    creating, dropping = _two(_for(database, "The workers' login of the database"), "-- replace the workers, then")
    for line in making.splitlines():
        await asyncio.to_thread(rotating.run, line, former="bso-worker-2", login="bso-worker")
    fleet = Fleet(tmp_path, start_worker)
    fleet.write(amqp_url=rotating.url("bso-worker"), database_url=database.url("bso_worker"))
    await asyncio.to_thread(fleet.replace, operators="bso-operator")
    job_id = new_job()
    async with RabbitBroker(rotating.amqp_url) as broker, Queue(broker=broker) as ask:
        await register(ask, job_id)
        async with Load(ask=ask, job_id=job_id, at_once=3) as load:
            await load.progress(3)

            for line in making.splitlines():
                await asyncio.to_thread(rotating.run, line, former="bso-worker-2", login="bso-worker-2")
            fleet.write(amqp_url=rotating.url("bso-worker-2"), database_url=database.url("bso_worker"))
            operators = f"bso-operator,{rotating.named('bso-worker')}"
            await asyncio.to_thread(fleet.replace, operators=operators)
            await asyncio.to_thread(rotating.run, deleting, former="bso-worker", login="bso-worker")
            await load.progress(3)

            await asyncio.to_thread(database.execute, creating)
            fleet.write(amqp_url=rotating.url("bso-worker-2"), database_url=database.url("bso_worker_2"))
            await asyncio.to_thread(fleet.replace, operators=operators)
            await asyncio.to_thread(database.execute, dropping)
            await load.progress(3)
    store = open_store(database.url("bso_worker_2"))
    assert await audit(store, job_id) == load.trials
    await store.close()


async def test_the_login_of_the_migration_is_replaced(database: Database) -> None:
    await upgrade(database.url("bso_migrate"))
    renewed = Database(server=database.server, admin_url=database.admin_url, password=new_password())
    renewed.execute(_for(database, "The login of `bso migrate`"))
    await upgrade(renewed.url("bso_migrate"))
    with pytest.raises(Exception, match="refused the login"):
        await upgrade(database.url("bso_migrate"), timeout_s=1.0)


@pytest.mark.parametrize(
    ("heading", "login"), [("A training's login", "vision"), ("An operator's login", "bso-operator")]
)
async def test_a_new_password_of_a_login_ends_no_connection_of_it(
    rotating: Rotating, mysql_url: str, start_worker: StartWorker, heading: str, login: str
) -> None:
    await upgrade(mysql_url)
    start_worker(amqp_url=rotating.amqp_url, database_url=mysql_url).ready()
    management, former = rotating.server.management, new_password()
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    url = management.add_user(rotating.amqp_url, rotating.named(login), former, **rights)
    job_id = new_job()
    async with RabbitBroker(url) as broker, Queue(broker=broker) as ask:
        await register(ask, job_id)
        async with Load(ask=ask, job_id=job_id, at_once=2) as load:
            await load.progress(2)
            line = statements_of(heading, language="bash")
            await asyncio.to_thread(rotating.run, line.strip(), former=login, login=login)
            await load.progress(2)
            async with RabbitBroker(rotating.url(login)) as anew, Queue(broker=anew) as ask_anew:
                await register(ask_anew, job_id)
    store = open_store(mysql_url)
    assert await audit(store, job_id) == load.trials
    await store.close()


@pytest.mark.slow
def test_the_erlang_cookie_is_replaced_by_a_restart(breakable_rabbitmq: RabbitMQ) -> None:
    cookie = breakable_rabbitmq.folder / ".erlang.cookie"
    breakable_rabbitmq.stop()
    cookie.chmod(0o600)
    cookie.write_text(uuid.uuid4().hex)
    cookie.chmod(0o400)
    breakable_rabbitmq.start()
    eventually(lambda: breakable_rabbitmq.node in breakable_rabbitmq.control("status"))


def _two(text: str, second: str) -> tuple[str, str]:
    """A text and the part of it that begins with some words."""
    first, found, rest = text.partition(second)
    assert found
    return first, found + rest


def _for(database: Database, heading: str) -> str:
    """The statements of a section for a kind of database: those for MySQL come first, and others speak of roles."""
    found = statements_of(heading).splitlines()
    first = next(number for number, line in enumerate(found) if " ROLE " in line)
    return "\n".join(found[:first] if database.is_mysql else found[first:])
