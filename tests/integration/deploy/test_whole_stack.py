"""What the stack is made of, without containers: all connections by the addresses that make-secrets has written."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.deploy.shipped_servers import ShippedMariaDB, ShippedRabbitMQ, make_secrets
from tests.integration.workers.processes import WorkerProcess
from tests.servers import PATIENCE_S

TRAINING = """
from bso_client import BatchSizeOptimizer, JobSpec

spec = JobSpec(job_id="nightly", batch_sizes=[16, 32], default_batch_size=32, target_metric=0.9)
for trial in BatchSizeOptimizer(spec).trials():
    with trial:
        while not trial.finished:
            trial.on_evaluate(0.95)
print(trial.converged)
"""


@pytest.fixture
def addresses(secrets: Path, rabbitmq: ShippedRabbitMQ, mariadb: ShippedMariaDB, tmp_path: Path) -> Path:
    """The files of secrets with addresses, for servers of this machine: nothing but host, port and folder differ."""
    for path in secrets.glob("*_url"):
        text = path.read_text()
        for shipped, ours in {
            "@rabbitmq:5671": f"@127.0.0.1:{rabbitmq.amqps_port}",
            "@127.0.0.1:5671": f"@127.0.0.1:{rabbitmq.amqps_port}",
            "@mysql:3306": f"@127.0.0.1:{mariadb.port}",
            "/run/trusted": str(secrets / "trusted"),
        }.items():
            text = text.replace(shipped, ours)
        (tmp_path / path.name).write_text(text)
    return tmp_path


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("BSO_")}
    return subprocess.run(
        [sys.executable, *command],
        env=inherited | environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def train(addresses: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    url = (addresses / "training_amqp_url").read_text().strip()
    return run("-c", TRAINING, BSO_URL=url, BSO_STATE_DIR=str(tmp_path / "state"), BSO_ENERGY="assumed")


@pytest.fixture
def worker(addresses: Path, tmp_path: Path) -> Iterator[WorkerProcess]:
    """One that is ready, after the migration."""
    files = {"BSO_MIGRATE_DATABASE_URL_FILE": str(addresses / "migrate_database_url"), "BSO_STATE_DIR": str(tmp_path)}
    migrated = run("-m", "bso_cli", "migrate", **files)
    assert migrated.returncode == 0, migrated.stderr
    environ = {"BSO_HEALTH_PORT": "0", "BSO_LOG_FORMAT": "json"}
    for variable, name in (("BSO_DATABASE_URL_FILE", "database_url"), ("BSO_AMQP_URL_FILE", "worker_amqp_url")):
        environ[variable] = str(addresses / name)
    process = WorkerProcess(tmp_path / "worker.log", environ)
    try:
        yield process.ready()
    finally:
        process.process.kill()
        process.process.wait()


@pytest.mark.slow
def test_a_migration_workers_and_a_training_find_each_other_encrypted(
    worker: WorkerProcess, addresses: Path, tmp_path: Path
) -> None:
    trained = train(addresses, tmp_path)
    assert trained.stdout == "True\n", f"{trained.stderr}\n{worker.text()}"
    url = (addresses / "training_amqp_url").read_text().strip()
    files = {"BSO_DATABASE_URL_FILE": str(addresses / "database_url"), "BSO_STATE_DIR": str(tmp_path / "state")}
    seen = run("-m", "bso_cli", "doctor", **files, BSO_URL=url)
    assert seen.stdout.count("encrypted (TLS") == 2, seen.stdout + seen.stderr


@pytest.mark.slow
def test_another_authority_takes_over_under_a_running_worker(
    worker: WorkerProcess, addresses: Path, rabbitmq: ShippedRabbitMQ, mariadb: ShippedMariaDB, tmp_path: Path
) -> None:
    trusted = rabbitmq.secrets / "trusted/ca.pem"
    former = trusted.read_text()
    make_secrets(rabbitmq.secrets, "--new-authority")
    make_secrets(rabbitmq.secrets, "--renew")
    rabbitmq.control("eval", "ssl:clear_pem_cache().")
    mariadb.execute("FLUSH SSL")
    new = trusted.read_text().removesuffix(former)
    trusted.unlink()
    trusted.write_text(new)  # as its page says: the former one is taken out
    connected = len(worker.lines("broker_connected"))
    rabbitmq.control("close_all_connections", "--global", "a test")
    mariadb.execute("KILL USER bso")
    # It may be back before it has missed anything, and has then not said that it was away.
    worker.until(lambda: len(worker.lines("broker_connected")) >= 2 * connected)
    worker.ready()
    trained = train(addresses, tmp_path)
    assert trained.stdout == "True\n", f"{trained.stderr}\n{worker.text()}"
