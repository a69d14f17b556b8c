"""What the stack is made of, without containers: all connections by the addresses that make-secrets has written."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from tests.integration.deploy.shipped_servers import ShippedMariaDB, ShippedRabbitMQ, make_secrets
from tests.integration.workers.processes import WorkerProcess
from tests.servers import PATIENCE_S

SERVICES = yaml.safe_load((Path(__file__).parents[3] / "deploy/compose.yaml").read_text(encoding="utf-8"))["services"]
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
    return trained_at(url, tmp_path)


def trained_at(
    url: str, tmp_path: Path, *, job_id: str = "nightly", **environ: str
) -> subprocess.CompletedProcess[str]:
    script = TRAINING.replace("nightly", job_id)
    return run("-c", script, BSO_URL=url, BSO_STATE_DIR=str(tmp_path / "state"), BSO_ENERGY="assumed", **environ)


@pytest.fixture
def worker(addresses: Path, tmp_path: Path) -> Iterator[WorkerProcess]:
    """One that is ready, after the migration."""
    files = {"BSO_MIGRATE_DATABASE_URL_FILE": str(addresses / "migrate_database_url"), "BSO_STATE_DIR": str(tmp_path)}
    migrated = run("-m", "bso_cli", "migrate", **files)
    assert migrated.returncode == 0, migrated.stderr
    environ = {"BSO_HEALTH_PORT": "0", "BSO_LOG_FORMAT": "json", "BSO_GATEWAYS": settings_of("worker")["BSO_GATEWAYS"]}
    for variable, name in (("BSO_DATABASE_URL_FILE", "database_url"), ("BSO_AMQP_URL_FILE", "worker_amqp_url")):
        environ[variable] = str(addresses / name)
    process = WorkerProcess(tmp_path / "worker.log", environ)
    try:
        yield process.ready()
    finally:
        process.process.kill()
        process.process.wait()


def settings_of(service: str) -> Mapping[str, str]:
    """What the compose file sets, with the defaults of its variables."""
    environment: Mapping[str, str] = SERVICES[service]["environment"]
    return {
        name: text.partition(":-")[2].removesuffix("}") if text.startswith("${") else text
        for name, text in environment.items()
    }


@pytest.fixture
def gateway(worker: WorkerProcess, addresses: Path, secrets: Path, tmp_path: Path) -> Iterator[str]:
    """The address of one that is ready, with the settings of the compose file, but for its folders and its port."""
    places = {
        "/run/secrets": str(addresses),
        "/run/tls": str(secrets / "gateway_tls"),
        "0.0.0.0": "127.0.0.1",  # what stands in the file
    }
    settings = json.dumps({**settings_of("gateway"), "BSO_GATEWAY_PORT": "0"})
    for shipped, ours in places.items():
        settings = settings.replace(shipped, ours)
    environ = json.loads(settings)
    process = WorkerProcess(
        tmp_path / "gateway.log", environ, program=("-m", "bso_cli", *SERVICES["gateway"]["command"][1:])
    )
    try:
        yield f"https://127.0.0.1:{process.logged('started')[0]['port']}"
    finally:
        process.process.kill()
        process.process.wait()


@pytest.mark.slow
def test_a_training_reaches_the_workers_through_the_gateway_with_a_token(
    gateway: str, addresses: Path, secrets: Path, tmp_path: Path
) -> None:
    database = {"BSO_DATABASE_URL_FILE": str(addresses / "database_url"), "BSO_STATE_DIR": str(tmp_path)}
    made = run("-m", "bso_cli", "tokens", "create", "vision-ci", "--jobs", "over-https", **database)
    assert made.returncode == 0, made.stderr
    trusted = {"SSL_CERT_FILE": str(secrets / "trusted/ca.pem")}
    trained = trained_at(gateway, tmp_path, job_id="over-https", BSO_TOKEN=made.stdout.strip(), **trusted)
    assert trained.stdout == "True\n", trained.stderr
    shown = run("-m", "bso_cli", "jobs", "show", "over-https", "--json", **database)
    assert '"vision-ci"' in shown.stdout, shown.stdout + shown.stderr


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
