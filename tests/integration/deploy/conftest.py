"""What deploy/make-secrets makes, and servers that are started with it and with what deploy ships."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.deploy.shipped_servers import ShippedMariaDB, ShippedRabbitMQ, make_secrets


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_secrets(tmp_path_factory.mktemp("shipped") / "secrets")


@pytest.fixture(scope="module")
def rabbitmq(secrets: Path) -> Iterator[ShippedRabbitMQ]:
    with ShippedRabbitMQ(secrets) as server:
        yield server


@pytest.fixture(scope="module")
def mariadb(secrets: Path) -> Iterator[ShippedMariaDB]:
    with ShippedMariaDB(secrets) as server:
        server.execute(f"SOURCE {secrets / 'mysql_logins.sql'}")
        yield server
