"""``bso doctor``: each thing that can be broken, broken, and what it says to do."""

import re
import sqlite3
import stat
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiormq
import pytest

from tests.acceptance.conftest import BSO, Command, started_worker
from tests.acceptance.recorded_jobs import record_noisy
from tests.servers import PATIENCE_S
from tests.servers.encrypted import EncryptedDatabase
from tests.servers.tls_broker import TlsBroker
from tools.private_servers import UNMISTAKABLE, Management

ENCRYPTED = "encrypted (TLSv1.3), certificate verified"


def examined(bso: Command, **environment: str) -> dict[str, Any]:
    """What it found, by topic; its exit code has to agree."""
    import json

    done = bso("doctor", "--json", **environment)
    shown = json.loads(done.stdout)
    assert done.returncode == (0 if shown["is_healthy"] else 1), done.stderr
    return {finding["topic"]: finding for finding in shown["findings"]}


def broken(findings: dict[str, Any]) -> dict[str, str]:
    """What is broken, in words."""
    return {
        topic: f"{finding['found']} {finding['advice']}"
        for topic, finding in findings.items()
        if finding["health"] == "broken"
    }


def test_on_a_fresh_machine_everything_works(bso: Command) -> None:
    findings = examined(bso)
    assert broken(findings) == {}
    assert "first" in findings["embedded optimizer"]["found"]
    assert "Everything works" in bso.ok("doctor")


def test_after_a_training_it_knows_the_schema(bso: Command, training: list[str]) -> None:
    bso.ok("recur", 1, "--", *training, "goes")
    assert "schema 0" in examined(bso)["embedded optimizer"]["found"]


def test_it_names_jobs_whose_costs_vary_much_from_run_to_run(bso: Command, state_dir: Path) -> None:
    state_dir.mkdir()
    record_noisy(f"sqlite:///{state_dir / 'bso.sqlite'}")
    noise = examined(bso)["noise"]
    assert noise["health"] == "note"
    assert re.fullmatch(r"what an epoch costs varies from run to run: by [3-8]\d% in job shared-node", noise["found"])
    connection = sqlite3.connect(state_dir / "bso.sqlite")
    connection.execute(
        "UPDATE job SET revision = revision + 1, state = '{' WHERE job_id = 'shared-node'"
    )  # a damaged job hides no other
    connection.commit()
    connection.close()
    noise = examined(bso)["noise"]
    assert noise["health"] == "ok"
    assert re.fullmatch(r"what an epoch costs varies by \d% or less from run to run in 1 job", noise["found"])


def test_an_address_that_cannot_be_one(bso: Command) -> None:
    assert "expected sqlite:////path" in broken(examined(bso, BSO_URL="redis://somewhere"))["settings"]


def test_a_state_directory_below_a_file(bso: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = broken(examined(bso, BSO_STATE_DIR=str(tmp_path / "file" / "state")))
    assert "BSO_STATE_DIR" in found["state directory"]


def test_a_disk_that_takes_no_more(bso: Command, state_dir: Path) -> None:
    state_dir.mkdir()
    full = ["sh", "-c", 'ulimit -f 0; exec "$0" doctor', str(BSO)]
    done = subprocess.run(full, env=bso.environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert f"✗ state directory: {state_dir} is not writable (File too large)" in done.stdout


def test_a_file_that_is_no_database(bso: Command, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("to whom it may concern, " * 100)
    found = broken(examined(bso, BSO_URL=f"sqlite:///{path}"))
    assert f"{path}: the database file cannot be used: file is not a database" in found["embedded optimizer"]
    assert "repair or remove the file" in found["embedded optimizer"]


def test_a_database_file_without_tables(bso: Command, tmp_path: Path) -> None:
    path = tmp_path / "empty.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE something_else (x)")
    connection.close()
    found = broken(examined(bso, BSO_URL=f"sqlite:///{path}"))
    assert "bso migrate" in found["embedded optimizer"]


def test_a_broker_that_is_not_there(bso: Command) -> None:
    found = broken(examined(bso, BSO_URL="amqp://guest:guest@127.0.0.1:1/"))
    assert "is it running" in found["broker"]


def test_the_workers_broker_where_nothing_says_what_trainings_talk_to(bso: Command, amqp_url: str) -> None:
    away = "amqp://guest:guest@127.0.0.1:1/"
    assert "is it running" in broken(examined(bso, BSO_AMQP_URL=away))["broker"]
    assert "bso worker" in broken(examined(bso, BSO_AMQP_URL=amqp_url))["workers"]
    assert "BSO_AMQP_URL: a broker URL begins with" in broken(examined(bso, BSO_AMQP_URL="redis://h/"))["settings"]
    assert "bso worker" in broken(examined(bso, BSO_URL=amqp_url, BSO_AMQP_URL=away))["workers"]


def test_a_password_that_is_wrong(bso: Command, amqp_url: str) -> None:
    host = urlsplit(amqp_url).netloc.rpartition("@")[2]
    found = broken(examined(bso, BSO_URL=f"amqp://guest:secret@{host}/"))
    assert "user name and password" in found["broker"]
    assert "secret" not in str(found)


@pytest.mark.slow
def test_how_the_connection_to_the_broker_is_encrypted(bso: Command, tls_broker: TlsBroker) -> None:
    findings = examined(bso, BSO_URL=tls_broker.url)
    assert findings["broker encryption"]["found"] == "encrypted (TLSv1.3), certificate verified"
    assert findings["broker encryption"]["health"] == "ok"
    assert "tls_ca=FILE" in broken(examined(bso, BSO_URL=tls_broker.url_with()))["broker"]


def test_that_the_connection_to_the_broker_is_not_encrypted(bso: Command, amqp_url: str) -> None:
    here = examined(bso, BSO_URL=amqp_url)["broker encryption"]
    assert (here["found"], here["health"]) == ("not encrypted: loopback", "ok")
    # The same machine, by a name that does not say so.
    beyond = examined(bso, BSO_URL=amqp_url.replace("127.0.0.1", "127.1"))["broker encryption"]
    assert beyond["health"] == "note"
    assert beyond["found"].startswith("not encrypted: who reads the network")
    assert "amqps://" in beyond["advice"]


def test_a_virtual_host_that_is_missing(bso: Command, amqp_url: str) -> None:
    found = broken(examined(bso, BSO_URL=amqp_url + "-missing"))
    assert "virtual host" in found["broker"]


def test_no_worker_was_ever_started(bso: Command, amqp_url: str) -> None:
    found = broken(examined(bso, BSO_URL=amqp_url))
    assert "bso worker" in found["workers"]


@pytest.mark.slow
def test_workers_come_and_go(bso: Command, amqp_url: str, mysql_url: str, tmp_path: Path) -> None:
    settings = {"BSO_URL": amqp_url, "BSO_DATABASE_URL": mysql_url}
    bso.ok("migrate", **settings)
    worker = started_worker(tmp_path / "worker.log", amqp_url, mysql_url)
    findings = examined(bso, **settings)
    assert broken(findings) == {}
    assert "an answer came" in findings["answers"]["found"]
    assert findings["logins"]["health"] == "ok"

    worker.terminate()
    assert worker.wait() == 0
    assert "no worker consumes" in broken(examined(bso, **settings))["workers"]


@pytest.mark.slow
async def test_a_queue_of_an_earlier_release_is_named_with_the_command_that_removes_it(
    bso: Command, amqp_url: str, mysql_url: str, tmp_path: Path
) -> None:
    settings = {"BSO_URL": amqp_url, "BSO_DATABASE_URL": mysql_url}
    bso.ok("migrate", **settings)
    worker = started_worker(tmp_path / "worker.log", amqp_url, mysql_url)
    connection = await aiormq.connect(amqp_url)
    channel = await connection.channel()
    await channel.queue_declare("bso.commands", durable=True, arguments={"x-queue-type": "quorum"})
    assert "rabbitmqctl delete_queue bso.commands" in broken(examined(bso, **settings))["queues"]
    await connection.close()
    worker.stop()


def test_a_database_without_schema(bso: Command, amqp_url: str, mysql_url: str) -> None:
    found = broken(examined(bso, BSO_URL=amqp_url, BSO_DATABASE_URL=mysql_url))
    assert "bso migrate" in found["database"]


def test_a_database_that_is_not_there(bso: Command) -> None:
    found = broken(examined(bso, BSO_DATABASE_URL="mysql://root:secret@127.0.0.1:1/bso"))
    assert "127.0.0.1:1" in found["database"]
    assert "secret" not in str(found)


def test_an_address_of_no_database(bso: Command) -> None:
    found = broken(examined(bso, BSO_DATABASE_URL="oracle://somewhere/bso"))
    assert "mysql://user:password@host/bso" in found["database"]


@pytest.mark.parametrize(
    ("options", "health", "found"),
    [
        ({}, "ok", "encrypted (TLSv1.3), certificate verified"),
        (
            {"host": "localhost", "tls": "verify-ca"},
            "ok",
            "encrypted (TLSv1.3), certificate verified, for whatever host",
        ),
        ({"tls": None, "tls_ca": None}, "ok", "not encrypted: loopback"),
        ({"tls": "off", "tls_ca": None, "host": "0.0.0.0"}, "note", "not encrypted: tls=off"),  # not called loopback
    ],
)
def test_it_says_how_the_connection_to_the_database_is_encrypted(
    bso: Command, encrypted_mariadb: EncryptedDatabase, options: dict[str, Any], health: str, found: str
) -> None:
    finding = examined(bso, BSO_DATABASE_URL=encrypted_mariadb.create_database("anyhow", **options))
    encryption = finding["database encryption"]
    assert (encryption["health"], encryption["found"]) == (health, found)
    assert ("tls=verify" in encryption["advice"]) == (health == "note")


def test_a_database_whose_certificate_is_not_trusted(bso: Command, encrypted_mariadb: EncryptedDatabase) -> None:
    url = encrypted_mariadb.create_database(tls_ca=None)
    found = broken(examined(bso, BSO_DATABASE_URL=url))
    assert "tls_ca=FILE" in found["database"]
    assert "docs/encryption.md" in found["database"]
    assert "tls_ca=FILE" in bso.refused("migrate", BSO_DATABASE_URL=url)


def test_an_option_of_an_address_that_is_unknown(bso: Command) -> None:
    found = broken(examined(bso, BSO_DATABASE_URL="mysql://me@127.0.0.1/bso?ssl=true"))
    assert "unknown option ssl; known are tls, tls_ca" in found["database"]


def test_a_login_that_may_not_look_at_the_queue_is_no_fault(
    bso: Command, amqp_url: str, rabbitmq_management: Management
) -> None:
    user = rabbitmq_management.add_user(amqp_url, "trainee", UNMISTAKABLE, configure="^$", write=".*", read=".*")
    assert "workers" in examined(bso, BSO_URL=user)


@pytest.mark.parametrize("mode", [stat.S_IRUSR])
def test_people_are_told_what_to_do(bso: Command, mode: int) -> None:
    done = bso("doctor", BSO_URL="amqp://guest:guest@127.0.0.1:1/")
    assert done.returncode == 1
    assert "1 thing broken" in done.stdout
