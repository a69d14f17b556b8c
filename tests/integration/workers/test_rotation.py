"""Each secret is replaced, by the page's commands, while commands flow: none is lost or refused."""

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from bso.domain.events import EpochReported
from bso.domain.trial import Outcome
from bso.service.errors import StoreLoginRefused
from bso.storage import open_store
from bso_broker.rabbit import RabbitBroker
from bso_client.delivery.left_behind import contents
from bso_migrations import upgrade
from tests.integration.client.scripts import Script
from tests.integration.logins import Database, url_of
from tests.integration.shipped import commands_for_a_login, statements_of
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.processes import WorkerProcess
from tests.integration.workers.recurrences import Load, Queue, audit, history, new_job, register
from tests.servers import PATIENCE_S, eventually, eventually_async
from tests.servers.sql import execute
from tools.private_servers import RabbitMQ, new_password

OF_WORKERS = "The workers' login of the broker"


class Rotating:
    """A broker and its logins, whose names begin with a word of this test's: they belong to the server."""

    def __init__(self, server: RabbitMQ, amqp_url: str) -> None:
        self.server, self.amqp_url, self.password = server, amqp_url, new_password()
        self._vhost, self._own = amqp_url.rpartition("/")[2], uuid.uuid4().hex[:6]

    def named(self, login: str) -> str:
        return f"{self._own}-{login}"

    def made(self, login: str) -> str:
        """Make a login of a team's trainings by the page's commands; its URL."""
        for line in commands_for_a_login():
            self.run(line.replace("vision", self.named(login)))
        return self.url(login)

    def run(self, line: str, *, former: str = "", login: str = "") -> None:
        """Carry out a command of the page, for a login in the place of that of the page."""
        line = line.replace("-p bso ", f"-p {self._vhost} ").replace(
            "rabbitmqctl ", f"rabbitmqctl -n {self.server.node} "
        )
        if former:
            line = line.replace(f" {former}", f" {self.named(login)}")
        self.server.shell(line, typed=f"{self.password}\n")

    def change_password(self, heading: str, login: str) -> None:
        """Carry out the command of a section of the page."""
        self.password = new_password()
        line = statements_of(heading, language="bash").strip()
        self.run(line, former=line.rpartition(" ")[2], login=login)

    def disconnect(self, login: str) -> None:
        """Close the connections of a login whose password is another one now, and wait until it has been refused."""
        self.server.management.close_connections(self.url(login))
        eventually(lambda: self.has_refused(login), what=f"a refusal of {login}")

    def has_refused(self, login: str) -> bool:
        """Whether the broker has refused a password of this login, by its log."""
        words = f"login refused: user '{self.named(login)}' - invalid credentials"
        return any(words in log.read_text(errors="replace") for log in (self.server.folder / "log").glob("*.log"))

    def url(self, login: str) -> str:
        return self.server.management.url_of(self._vhost, name=self.named(login), password=self.password)


@pytest.fixture
def rotating(rabbitmq_server: RabbitMQ, amqp_url: str) -> Iterator[Rotating]:
    broker = Rotating(rabbitmq_server, amqp_url)
    yield broker
    for user in rabbitmq_server.management.request("GET", "users"):
        if user["name"].startswith(broker.named("")):
            rabbitmq_server.management.request("DELETE", f"users/{user['name']}")


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


def _logins_of_workers() -> tuple[str, str]:
    """The page's commands that make a login of workers at the broker, and that delete one."""
    return _two(statements_of(OF_WORKERS, language="bash"), "rabbitmqctl delete_user")


async def _at_work(rotating: Rotating, database: Database, fleet: Fleet) -> Fleet:
    """Workers with their first login of the broker, which is made here, and of the database."""
    making, _ = _logins_of_workers()
    for line in making.splitlines():
        await asyncio.to_thread(rotating.run, line, former="bso-worker-2", login="bso-worker")
    fleet.write(amqp_url=rotating.url("bso-worker"), database_url=database.url("bso_worker"))
    await asyncio.to_thread(fleet.replace, operators="bso-operator")
    return fleet


@pytest.mark.slow
async def test_the_logins_of_the_workers_are_replaced_while_commands_flow(
    rotating: Rotating, database: Database, start_worker: StartWorker, tmp_path: Path
) -> None:
    await upgrade(database.url("bso_migrate"))
    making, deleting = _logins_of_workers()
    creating, dropping = _two(_for(database, "The workers' login of the database"), "-- replace the workers, then")
    fleet = await _at_work(rotating, database, Fleet(tmp_path, start_worker))
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


async def test_mysqls_second_password_of_the_workers_login(
    amqp_url: str, mysql_url: str, start_worker: StartWorker, tmp_path: Path
) -> None:
    administrator, login = open_store(mysql_url), f"worker_{uuid.uuid4().hex[:6]}"
    if "MariaDB" in await execute(administrator, "SELECT VERSION()"):
        await administrator.close()
        pytest.skip("MariaDB knows no second password: make test-newest")
    connections = f"FROM performance_schema.processlist WHERE user = '{login}'"
    former, new = (url_of(mysql_url, login, new_password()) for _ in range(2))

    async def carry_out(sql: str, url: str) -> None:
        words = {"'bso_worker'": f"'{login}'", "bso.*": f"{sa.make_url(url).database}.*"}
        words["PASSWORD-OF-WORKER"] = str(sa.make_url(url).password)
        for word, own in words.items():
            sql = sql.replace(word, own)
        await execute(administrator, *(statement for statement in sql.split(";") if statement.strip()))

    async def disconnect() -> None:
        numbers = await execute(administrator, f"SELECT GROUP_CONCAT(id) {connections}")
        for number in numbers.split(","):
            with suppress(OperationalError):  # a worker that has lost one gives up the others itself
                await execute(administrator, f"KILL {number}")

        async def are_gone() -> bool:
            left = await execute(administrator, f"SELECT COUNT(*) {connections} AND id IN ({numbers})")
            return bool(left == 0)

        await eventually_async(are_gone, what="the end of the connections")

    await upgrade(mysql_url)
    making = statements_of("Logins of MySQL or MariaDB").splitlines()
    await carry_out("\n".join(line for line in making if "'bso_worker'" in line), former)
    retaining, discarding = _two(statements_of("MySQL's second password"), "-- put the new password")
    fleet = Fleet(tmp_path, start_worker)
    fleet.write(amqp_url=amqp_url, database_url=former)
    await asyncio.to_thread(fleet.replace, operators="bso-operator")
    job_id = new_job()
    async with RabbitBroker(amqp_url) as broker, Queue(broker=broker) as ask:
        await register(ask, job_id)
        async with Load(ask=ask, job_id=job_id, at_once=3) as load:
            await load.progress(3)
            await carry_out(retaining, new)
            await disconnect()
            await load.progress(3)
            fleet.write(amqp_url=amqp_url, database_url=new)
            await carry_out(discarding, new)
            await disconnect()
            await load.progress(3)
    assert await audit(administrator, job_id) == load.trials
    refused = open_store(former)
    with pytest.raises(StoreLoginRefused):
        await refused.ping()
    await refused.close()
    await execute(administrator, f"DROP USER '{login}'@'%'")
    await administrator.close()


async def test_the_login_of_the_migration_is_replaced(database: Database) -> None:
    await upgrade(database.url("bso_migrate"))
    renewed = Database(server=database.server, admin_url=database.admin_url, password=new_password())
    renewed.execute(_for(database, "The login of `bso migrate`"))
    await upgrade(renewed.url("bso_migrate"))
    with pytest.raises(Exception, match="refused the login"):
        await upgrade(database.url("bso_migrate"), timeout_s=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heading", "login"), [("A training's login", "vision"), ("An operator's login", "bso-operator")]
)
async def test_a_new_password_of_a_login_ends_no_connection_of_it(
    rotating: Rotating, mysql_url: str, start_worker: StartWorker, heading: str, login: str
) -> None:
    await upgrade(mysql_url)
    start_worker(amqp_url=rotating.amqp_url, database_url=mysql_url).ready()
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    management = rotating.server.management
    url = management.add_user(rotating.amqp_url, rotating.named(login), rotating.password, **rights)
    job_id = new_job()
    async with RabbitBroker(url) as broker, Queue(broker=broker) as ask:
        await register(ask, job_id)
        async with Load(ask=ask, job_id=job_id, at_once=2) as load:
            await load.progress(2)
            await asyncio.to_thread(rotating.change_password, heading, login)
            await load.progress(2)
            async with RabbitBroker(rotating.url(login)) as anew, Queue(broker=anew) as ask_anew:
                await register(ask_anew, job_id)
    store = open_store(mysql_url)
    assert await audit(store, job_id) == load.trials
    await store.close()


class Training:
    """A training script that runs, one evaluation after the other; it trains the job ``job``, which is no other's."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    @contextmanager
    def running(cls, folder: Path, *, url: str | None = None, url_file: Path | None = None) -> Iterator[Self]:
        """One whose first trial has begun."""
        folder.mkdir(exist_ok=True)
        with Script(folder, TRAINING, url=url, url_file=url_file).running() as process:
            yield cls(process)

    def evaluate(self, metric: float) -> None:
        """Let it report a metric, and wait until it trains on."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{metric}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "evaluated\n"

    def finish(self) -> None:
        """Let it reach its target, and wait for a good end."""
        self.evaluate(0.95)
        assert self._process.wait(PATIENCE_S) == 0


TRAINING = """
if __name__ == "__main__":
    spec = JobSpec(job_id="job", batch_sizes=[32, 64, 128], default_batch_size=64, target_metric=0.9, beta_knob=None)
    bso = BatchSizeOptimizer(spec, hardware=hardware)
    for trial in bso.trials():
        with trial:
            print("ready", flush=True)
            while not trial.finished:
                trial.on_evaluate(float(input()))
                print("evaluated", flush=True)
"""
TRAININGS = "A training's login"


class Records:
    """What the workers' database has of the trainings."""

    def __init__(self, url: str) -> None:
        self._url = url

    def become(self, *wanted: tuple[list[float], Outcome | None]) -> None:
        """Wait until they are these: for each trial the epochs that it has recorded, in order, and how it ended."""
        eventually(lambda: self.trials() == list(wanted), what=f"{wanted}")

    def trials(self) -> list[tuple[list[float], Outcome | None]]:
        """The same as they are now. Log and tables must agree."""
        return asyncio.run(self._trials())

    async def _trials(self) -> list[tuple[list[float], Outcome | None]]:
        store = open_store(self._url)
        events = [stored.recorded.event for stored in await history(store, "job")]
        trials = await store.trials("job")
        assert await audit(store, "job") == len(trials)
        await store.close()
        reports = [event for event in events if isinstance(event, EpochReported)]
        return [
            ([each.epoch for each in reports if each.trial_number == trial.trial_number], trial.outcome)
            for trial in trials
        ]


@pytest.fixture
def records(mysql_url: str) -> Records:
    return Records(mysql_url)


@pytest.fixture
def worker(rotating: Rotating, mysql_url: str, start_worker: StartWorker) -> WorkerProcess:
    """One that knows the team of the login ``vision``."""
    asyncio.run(upgrade(mysql_url))
    return start_worker(teams=rotating.named("vision")).ready()


@pytest.mark.slow
def test_trainings_move_to_a_second_login_of_their_team(
    rotating: Rotating, worker: WorkerProcess, records: Records, tmp_path: Path
) -> None:
    former, second = rotating.made("vision"), rotating.named("vision-2")
    with Training.running(tmp_path / "first", url=former) as first:
        first.evaluate(0.1)
        with Training.running(tmp_path / "second", url=rotating.made("vision-2")) as other:
            first.evaluate(0.2)
            other.evaluate(0.1)
            first.finish()
            give = [sys.executable, "-m", "bso_cli", "jobs", "give", "job", second, "--yes"]
            subprocess.run(give, env={**os.environ, "BSO_URL": former}, check=True, capture_output=True)
            assert contents(tmp_path / "first/state") == []
            rotating.run(f"rabbitmqctl delete_user {rotating.named('vision')}")
            other.evaluate(0.2)
            other.finish()
    with Training.running(tmp_path / "first", url=rotating.url("vision-2")) as third:
        third.finish()
    whole = ([1.0, 2.0, 3.0], Outcome.CONVERGED)
    records.become(whole, whole, ([1.0], Outcome.CONVERGED))
    assert not any(map(rotating.has_refused, ("vision", "vision-2")))
    assert not worker.metric("bso_dead_letters_total")


@pytest.mark.slow
def test_a_training_reads_the_new_password_of_its_login_from_its_file(
    rotating: Rotating, worker: WorkerProcess, records: Records, tmp_path: Path
) -> None:
    file = tmp_path / "amqp_url"
    file.write_text(rotating.made("vision"))
    with Training.running(tmp_path, url_file=file) as training:
        training.evaluate(0.1)
        rotating.change_password(TRAININGS, "vision")
        training.evaluate(0.2)
        records.become(([1.0, 2.0], None))
        rotating.disconnect("vision")
        training.evaluate(0.3)
        assert records.trials() == [([1.0, 2.0], None)]
        file.write_text(rotating.url("vision"))
        records.become(([1.0, 2.0, 3.0], None))
        training.finish()
    records.become(([1.0, 2.0, 3.0, 4.0], Outcome.CONVERGED))
    assert contents(tmp_path / "state") == []


@pytest.mark.slow
def test_what_a_training_with_the_former_password_leaves_is_delivered_by_the_next_one(
    rotating: Rotating, worker: WorkerProcess, records: Records, tmp_path: Path
) -> None:
    with Training.running(tmp_path, url=rotating.made("vision")) as training:
        training.evaluate(0.1)
        records.become(([1.0], None))
        rotating.change_password(TRAININGS, "vision")
        rotating.disconnect("vision")
        training.evaluate(0.2)
        training.finish()
    assert records.trials() == [([1.0], None)]
    with Training.running(tmp_path, url=rotating.url("vision")) as following:
        records.become(([1.0, 2.0, 3.0], Outcome.CONVERGED), ([], None))
        following.finish()
    records.become(([1.0, 2.0, 3.0], Outcome.CONVERGED), ([1.0], Outcome.CONVERGED))
    assert contents(tmp_path / "state") == []


@pytest.mark.slow
async def test_workers_read_the_new_passwords_of_their_logins_from_their_files(
    rotating: Rotating, database: Database, start_worker: StartWorker, tmp_path: Path
) -> None:
    await upgrade(database.url("bso_migrate"))
    fleet = await _at_work(rotating, database, Fleet(tmp_path, start_worker))
    job_id = new_job()
    async with RabbitBroker(rotating.amqp_url) as broker, Queue(broker=broker) as ask:
        await register(ask, job_id)
        async with Load(ask=ask, job_id=job_id, at_once=3) as load:
            await load.progress(3)
            renewed = Database(server=database.server, admin_url=database.admin_url, password=new_password())
            changing = _for(database, "The login of `bso migrate`").replace("bso_migrate", "bso_worker")
            await asyncio.to_thread(renewed.execute, changing)
            await asyncio.to_thread(rotating.change_password, TRAININGS, "bso-worker")
            await asyncio.to_thread(renewed.execute, DISCONNECTING[database.is_mysql])
            await asyncio.to_thread(rotating.disconnect, "bso-worker")
            fleet.write(amqp_url=rotating.url("bso-worker"), database_url=renewed.url("bso_worker"))
            await load.progress(3)
    store = open_store(renewed.url("bso_worker"))
    assert await audit(store, job_id) == load.trials
    await store.close()


DISCONNECTING = {
    True: "KILL USER bso_worker;",
    False: "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'bso_worker';",
}
"""How a database closes the connections of a login; whether it is MySQL or MariaDB."""


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
