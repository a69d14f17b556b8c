"""The commands of a platform: migrate, worker, and trainings, jobs and events through a broker."""

import asyncio
import json
import sqlite3
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import aio_pika
import aiormq
import pytest
from aiormq.exceptions import ChannelAccessRefused
from pamqp.commands import Basic

from bso.domain.events import TrialSuspended
from bso.domain.log import RecordedEvent
from bso_broker.addresses import event_pattern, new_reply_queue
from bso_broker.messages import event_message
from bso_broker.rabbit import RabbitBroker
from bso_broker.topology import EVENTS, client_permissions
from bso_migrations import upgrade
from tests.acceptance.conftest import Command, started_worker
from tests.servers import PATIENCE_S
from tools.private_servers import UNMISTAKABLE, RabbitMQ


@pytest.fixture
def platform(bso: Command, amqp_url: str, mysql_url: str, tmp_path: Path) -> Iterator[Command]:
    """The command of somebody who has a broker, a database and a worker."""
    bso.environment |= {"BSO_URL": amqp_url, "BSO_DATABASE_URL": mysql_url}
    asyncio.run(upgrade(mysql_url))
    worker = started_worker(tmp_path / "worker.log", amqp_url, mysql_url)
    yield bso
    worker.kill()


@pytest.fixture
def trainee(platform: Command) -> Command:
    """The command of somebody who knows the broker alone."""
    del platform.environment["BSO_DATABASE_URL"]
    return platform


def test_a_training_through_the_broker_is_in_the_database(platform: Command, training: list[str]) -> None:
    shown = platform.json("recur", 2, "--", *training, "goes")
    assert shown["failed"] == 0
    assert [trial["outcome"] for trial in platform.lines("jobs", "export", "toy")] == ["converged"] * 2
    assert "16 is the default" in platform.ok("jobs", "why", "toy")


def test_the_trial_of_a_killed_training_is_finished_through_the_broker(trainee: Command, training: list[str]) -> None:
    assert trainee("recur", 1, "--", *training, "killed").returncode == 137
    assert trainee.json("jobs", "show", "toy")["job"]["active_trials"] == []


@pytest.mark.slow
def test_with_the_broker_alone_a_job_can_be_shown_allowed_and_deleted(trainee: Command, training: list[str]) -> None:
    trainee.ok("recur", 1, "--", *training, "goes")
    assert trainee.json("jobs", "show", "toy")["job"]["trials"] == 1
    assert trainee.json("jobs", "allow", "toy", 16)["hardware_keys"]
    assert trainee.json("jobs", "delete", "toy", "--yes")["job_id"] == "toy"
    assert "was deleted" in trainee.refused("jobs", "show", "toy")


SEEN = (
    "jobs list",
    "jobs show toy",
    "jobs why toy",
    "jobs why toy 2",
    "events history toy",
    "replay what-if toy --seeds 2",
)


@pytest.mark.slow
def test_with_the_broker_alone_one_sees_what_the_database_holds(platform: Command, training: list[str]) -> None:
    platform.ok("recur", 3, "--", *training, "goes")
    with_database = {command: platform.ok(*command.split()) for command in SEEN}
    exported = platform.lines("jobs", "export", "toy")
    del platform.environment["BSO_DATABASE_URL"]
    for command, expected in with_database.items():
        assert platform.ok(*command.split()) == expected, command
    assert [{**trial, "trial_id": ""} for trial in exported] == platform.lines("jobs", "export", "toy")
    assert len(platform.lines("jobs", "export", "toy", "--what", "events")) > 9
    assert "name a job" in platform.refused("events", "history")
    assert "not registered" in platform.refused("jobs", "export", "nobody")


@pytest.mark.slow
def test_a_job_is_granted_and_given_away(trainee: Command, training: list[str]) -> None:
    trainee.ok("recur", 1, "--", *training, "goes")
    assert "login vision-ann may read it, and train" in trainee.ok(
        "jobs", "grant", "toy", "vision-ann", "--may", "read,train"
    )
    assert trainee("jobs", "grant", "toy", "vision-ann", "--may", "read,all").returncode == 2
    assert "login vision-ann may read it, and train" in trainee.ok("jobs", "show", "toy")
    asked = trainee.refused("jobs", "give", "toy", "vision-bob")  # nobody is there to say yes
    assert "Job toy belongs to login guest, which keeps only" in asked
    assert "Login vision-bob may then do everything with it" in asked
    assert trainee.json("jobs", "show", "toy")["job"]["owner"] == "guest"
    assert trainee.json("jobs", "give", "toy", "vision-bob", "--yes")["owner"] == "vision-bob"
    refused = trainee.refused("jobs", "show", "toy")
    assert "belongs to vision-bob" in refused
    assert "bso jobs grant toy guest --may read" in refused


@pytest.mark.slow
def test_the_lines_that_are_printed_change_who_receives_a_jobs_live_events_and_nothing_else(
    platform: Command, training: list[str], amqp_url: str, rabbitmq_server: RabbitMQ
) -> None:
    platform.ok("recur", 1, "--", *training, "goes")
    ann = login_of_team_vision("vision-ann", amqp_url, rabbitmq_server)
    assert live(ann, amqp_url) == {"vision-own"}

    granted = platform("jobs", "grant", "toy", "vision-ann", "--may", "read")
    for line in commands_in(granted.stderr):
        rabbitmq_server.shell(line)
    assert live(ann, amqp_url) == {"vision-own", "toy"}

    taken = platform("jobs", "grant", "toy", "vision-ann", "--may", "nothing")
    showing, setting, closing = commands_in(taken.stderr)
    assert r"|^[^.]+\.toy$" in rabbitmq_server.shell(showing)
    rabbitmq_server.shell(setting.replace("PATTERN", r"^[^.]+\.vision-.*$"))
    rabbitmq_server.shell(closing)
    assert live(ann, amqp_url) == {"vision-own"}

    given = platform("jobs", "give", "toy", "vision-ann", "--yes")
    opening, *closing_guest = commands_in(given.stderr)
    assert all("guest" in line for line in closing_guest)
    rabbitmq_server.shell(opening)
    assert live(ann, amqp_url) == {"vision-own", "toy"}


@pytest.mark.slow
def test_a_login_that_receives_all_live_events_goes_on_receiving_them(
    platform: Command, training: list[str], amqp_url: str, rabbitmq_server: RabbitMQ
) -> None:
    platform.ok("recur", 1, "--", *training, "goes")
    [opening] = commands_in(platform("jobs", "grant", "toy", "guest-2", "--may", "read").stderr)
    permitted = client_permissions("guest-2")
    everything = rabbitmq_server.management.add_user(
        amqp_url, "guest-2", UNMISTAKABLE, configure=permitted.configure, write=permitted.write, read=permitted.read
    )
    rabbitmq_server.shell(opening)
    assert live(everything, amqp_url) == {"vision-own", "toy"}
    assert not rabbitmq_server.shell("rabbitmqctl -q list_user_topic_permissions guest-2").strip()


def commands_in(said: str) -> list[str]:
    """The lines of a shell among those that a command has printed."""
    return [line for line in said.splitlines() if "rabbitmqctl " in line]


def login_of_team_vision(name: str, amqp_url: str, server: RabbitMQ) -> str:
    """The URL of a new login that may read its team's events, as the pages say how to make one."""
    permitted = client_permissions(name, job_id_prefix="vision-")
    url = server.management.add_user(
        amqp_url, name, UNMISTAKABLE, configure=permitted.configure, write=permitted.write, read=permitted.read
    )
    server.management.permit_topics(
        name, amqp_url, exchange=EVENTS, write=permitted.topic_write, read=permitted.topic_read
    )
    return url


def live(login_url: str, amqp_url: str) -> set[str]:
    """Of which of the two jobs, vision-own and toy, a login receives a live event."""

    async def receives(job_id: str) -> bool:
        async with aiormq.connect(login_url) as connection:
            channel = await connection.channel()
            queue = new_reply_queue(urlsplit(login_url).username or "")
            await channel.queue_declare(queue, exclusive=True)
            try:
                await channel.queue_bind(queue, EVENTS, event_pattern(job_id=job_id))
            except ChannelAccessRefused:
                return False
            await _publish(amqp_url, (1, 7), job_id=job_id)
            return isinstance((await channel.basic_get(queue)).delivery, Basic.GetOk)

    return {job_id for job_id in ("vision-own", "toy") if asyncio.run(receives(job_id))}


@pytest.mark.parametrize("command", ["migrate", "replay verify toy", "events prune --before 1d --export x --yes"])
def test_with_the_broker_alone_the_others_say_what_they_need(bso: Command, command: str) -> None:
    said = bso.refused(*command.split(), code=2, BSO_URL="amqp://guest:guest@127.0.0.1:1/")
    assert "reads the database" in said
    assert "BSO_DATABASE_URL" in said


def test_events_are_followed_live_through_the_broker(trainee: Command, training: list[str]) -> None:
    tail = trainee.start("events", "tail", "toy", "--type", "trial_ended", "--count", 2, "--json")
    assert tail.stderr is not None
    assert "following" in tail.stderr.readline()
    trainee.ok("recur", 2, "--", *training, "goes")
    printed, _ = tail.communicate(timeout=PATIENCE_S)
    assert [json.loads(line)["payload"]["trial_number"] for line in printed.splitlines()] == [1, 2]


def test_an_event_that_comes_twice_is_shown_once_and_one_of_a_later_epoch_is_another(
    trainee: Command, amqp_url: str
) -> None:
    tail = trainee.start("events", "tail", "toy", "--count", 3, "--json")
    assert tail.stderr is not None
    assert "following" in tail.stderr.readline()
    asyncio.run(_publish(amqp_url, (1, 7), (1, 8), (1, 7), (1, 8), (2, 8)))
    printed, _ = tail.communicate(timeout=PATIENCE_S)
    events = [json.loads(line) for line in printed.splitlines()]
    assert [(event["log_epoch"], event["seq"]) for event in events] == [(1, 7), (1, 8), (2, 8)]


async def _publish(url: str, *places: tuple[int, int], job_id: str = "toy") -> None:
    async with RabbitBroker(url) as broker:
        publisher = broker.event_publisher()
        for log_epoch, seq in places:
            recorded = RecordedEvent(
                job_id=job_id,
                seq=seq,
                recorded_at=datetime.now(UTC),
                command_id=str(uuid.uuid4()),
                part=0,
                event=TrialSuspended(trial_number=1),
                log_epoch=log_epoch,
            )
            await publisher.publish_batch([event_message(recorded)])


def test_migrate_can_be_repeated_and_checked(bso: Command, mysql_url: str) -> None:
    bso.environment["BSO_DATABASE_URL"] = mysql_url
    assert bso("migrate", "--check").returncode == 1
    assert bso.json("migrate")["status"] == "current"
    assert "up to date" in bso.ok("migrate")
    assert bso.json("migrate", "--check")["differences"] == []


def test_migrate_gives_up_on_a_database_that_stays_away(bso: Command) -> None:
    said = bso.refused("migrate", "--wait", 0.1, BSO_DATABASE_URL="mysql://root:secret@127.0.0.1:1/bso")
    assert "127.0.0.1:1" in said
    assert "secret" not in said


@pytest.mark.parametrize("dialect", ["mysql", "mariadb", "postgresql", "sqlite"])
def test_migrate_prints_the_sql_of_each_database(bso: Command, dialect: str, tmp_path: Path) -> None:
    printed = bso.ok("migrate", "--sql", "--dialect", dialect)
    assert "CREATE TABLE" in printed
    if dialect == "sqlite":
        connection = sqlite3.connect(tmp_path / "offline.sqlite")
        connection.executescript(printed)
        connection.close()
        assert bso.json("jobs", "list", BSO_URL=f"sqlite:///{tmp_path / 'offline.sqlite'}") == []


def test_a_worker_without_settings_names_them(bso: Command) -> None:
    done = bso("worker")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "BSO_DATABASE_URL" in done.stderr
    assert "BSO_AMQP_URL" in done.stderr


def test_dead_letters_are_listed_sent_again_and_purged(bso: Command, amqp_url: str) -> None:
    bso.environment["BSO_AMQP_URL"] = amqp_url
    asyncio.run(_bury(amqp_url, "one", "two", "three"))
    assert bso.json("dead-letters", "counts")["dead_letters"] == 3
    assert [letter["message_id"] for letter in bso.json("dead-letters", "list", "--limit", 2)] == ["one", "two"]
    assert bso.json("dead-letters", "requeue", "two") == {"requeued": 1}
    assert "no dead letter" in bso.refused("dead-letters", "requeue", "two")
    assert "2 dead letters deleted" in bso.ok("dead-letters", "purge", "--yes")
    assert bso.json("dead-letters", "counts")["commands"] == 1


async def _bury(url: str, *message_ids: str) -> None:
    connection = await aio_pika.connect(url)
    async with RabbitBroker(url) as broker, connection:
        await broker.declare()
        exchange = await (await connection.channel()).get_exchange("bso.dead-letters", ensure=False)
        for message_id in message_ids:
            await exchange.publish(aio_pika.Message(b"{", message_id=message_id), routing_key="")


def test_dead_letters_need_a_broker(bso: Command) -> None:
    assert "BSO_AMQP_URL" in bso.refused("dead-letters", "list")
