"""The logins that make-secrets makes for the database may do what they need, and nothing else."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.deploy.shipped_servers import address, make_secrets
from tests.integration.workers.processes import WorkerProcess
from tests.servers import PATIENCE_S
from tools.private_servers import MariaDB

TRAINING = """
from bso_client import BatchSizeOptimizer, JobSpec

spec = JobSpec(job_id="logins", batch_sizes=[16, 32], default_batch_size=32, target_metric=0.9)
for trial in BatchSizeOptimizer(spec).trials():
    with trial:
        while not trial.finished:
            trial.on_evaluate(0.95)
print(trial.converged, trial.outcome_reason)
"""


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    return make_secrets(tmp_path / "secrets")


@pytest.fixture
def server(mariadb_server: MariaDB, secrets: Path) -> Iterator[MariaDB]:
    """A MariaDB in which the file that make-secrets has written was run."""
    server = mariadb_server.start()
    run_file(server, secrets)
    yield server
    server.execute("DROP DATABASE bso; DROP USER 'bso'@'%', 'bso-migrate'@'%'")


def run_file(server: MariaDB, secrets: Path) -> None:
    server.execute(f"SOURCE {secrets / 'mysql_logins.sql'}")


def bso(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("BSO_")}
    return subprocess.run(
        [sys.executable, "-m", "bso_cli", *arguments],
        env=environ | {"BSO_DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def privileges(server: MariaDB, login: str) -> set[str]:
    """What the login may do with the database."""
    [granted] = [line for line in server.execute(f"SHOW GRANTS FOR '{login}'@'%'").splitlines() if "ON `bso`.*" in line]
    return set(granted.removeprefix("GRANT ").partition(" ON ")[0].split(", "))


def test_each_login_has_the_privileges_of_its_work(server: MariaDB) -> None:
    rows = {"SELECT", "INSERT", "UPDATE", "DELETE"}
    assert privileges(server, "bso") == rows
    assert privileges(server, "bso-migrate") == rows | {"CREATE", "ALTER", "DROP", "INDEX"}


@pytest.mark.slow
def test_one_login_migrates_and_the_other_one_works(
    server: MariaDB, secrets: Path, tmp_path: Path, amqp_url: str
) -> None:
    migrating, working = (address(secrets, name, port=server.port) for name in ("migrate_database_url", "database_url"))
    refused = bso(working, "migrate", "--wait", "0")
    assert refused.returncode == 1
    assert "CREATE" in refused.stderr
    assert bso(migrating, "migrate").returncode == 0
    assert bso(working, "migrate", "--check").returncode == 0

    environ = {"BSO_URL": amqp_url, "BSO_HEALTH_PORT": "0", "BSO_LOG_FORMAT": "json", "BSO_REQUIRE_USER_ID": "false"}
    worker = WorkerProcess(tmp_path / "worker.log", environ | {"BSO_DATABASE_URL": working})
    try:
        worker.ready()
        done = subprocess.run(
            [sys.executable, "-c", TRAINING],
            env={**os.environ, "BSO_URL": amqp_url, "BSO_STATE_DIR": str(tmp_path / "state")},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        worker.process.kill()
        worker.process.wait()
    assert done.stdout.startswith("True "), f"{done.stderr}\n{worker.text()}"
    assert bso(working, "jobs", "delete", "logins", "--yes").returncode == 0
    assert bso(working, "jobs", "purge", "--before", "0d", "--yes").returncode == 0


def test_run_again_it_sets_passwords_and_takes_what_is_too_much(server: MariaDB, tmp_path: Path) -> None:
    server.execute("GRANT ALL ON bso.* TO 'bso'@'%'")
    others = make_secrets(tmp_path / "others")
    run_file(server, others)
    assert privileges(server, "bso") <= {"SELECT", "INSERT", "UPDATE", "DELETE", "DELETE HISTORY"}
    login = address(others, "database_url", port=server.port)
    assert "schema is missing" in bso(login, "migrate", "--check").stdout
