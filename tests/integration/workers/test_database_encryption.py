"""Certificates of the database that are renewed under a running worker, well and badly."""

import shutil
from pathlib import Path

import pytest

from bso_migrations import upgrade
from bso_workers.lifecycle import ExitCode
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.recurrences import Queue, new_job, register
from tests.servers import eventually
from tests.servers.certificates import Authority
from tests.servers.encrypted import EncryptedDatabase, copied


@pytest.fixture
def trusted(encrypted_mariadb: EncryptedDatabase, tmp_path: Path) -> Path:
    """A file of the authorities that a worker trusts."""
    return Path(shutil.copy(encrypted_mariadb.authority.ca, tmp_path / "trusted.pem"))


@pytest.fixture
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that the worker does not trust yet."""
    return Authority(tmp_path_factory.mktemp("other"))


async def test_a_worker_goes_on_with_renewed_certificates(
    encrypted_mariadb: EncryptedDatabase, trusted: Path, other: Authority, ask: Queue, start_worker: StartWorker
) -> None:
    own = copied(encrypted_mariadb.authority.issue("worker", common_name="certified"), trusted.parent)
    url = encrypted_mariadb.create_database("certified", tls_ca=trusted, tls_cert=own.cert, tls_key=own.key)
    await upgrade(url)
    worker = start_worker(database_url=url).ready()
    await register(ask, new_job())

    shutil.copy(other.ca, trusted)
    copied(encrypted_mariadb.authority.issue("renewed", common_name="certified"), trusted.parent)
    encrypted_mariadb.show(other.issue("server", "127.0.0.1"))
    try:
        encrypted_mariadb.server.execute("KILL USER certified")  # the worker needs new connections
        await register(ask, new_job())
        worker.ready()
    finally:
        encrypted_mariadb.show(encrypted_mariadb.certificate)


async def test_a_worker_waits_while_a_file_is_wrong_and_says_which(
    encrypted_mariadb: EncryptedDatabase, trusted: Path, ask: Queue, start_worker: StartWorker
) -> None:
    url = encrypted_mariadb.create_database(tls_ca=trusted)
    await upgrade(url)
    worker = start_worker(database_url=url).ready()
    shutil.copy(__file__, trusted)

    def says_so() -> bool:
        encrypted_mariadb.server.execute("KILL USER secured")  # the worker needs new connections
        return f"tls_ca={trusted}" in worker.reasons().get("database", "")

    eventually(says_so, what="the reason on /readyz")
    assert worker.page("livez")[0] == 200
    shutil.copy(encrypted_mariadb.authority.ca, trusted)
    worker.ready()
    await register(ask, new_job())


def test_a_worker_with_a_wrong_file_does_not_start(
    encrypted_mariadb: EncryptedDatabase, amqp_url: str, start_worker: StartWorker, tmp_path: Path
) -> None:
    url = encrypted_mariadb.create_database(tls_ca=tmp_path / "missing.pem")
    worker = start_worker(database_url=url, amqp_url=amqp_url)
    assert worker.wait() == ExitCode.MISCONFIGURED
    assert "tls_ca" in worker.lines("misconfigured")[0]["reason"]
