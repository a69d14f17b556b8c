"""Every command that talks to a broker, over TLS: with the file of the broker's authority, and without it."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bso_migrations import upgrade
from tests.acceptance.conftest import Command, started_worker
from tests.servers import PATIENCE_S
from tests.servers.tls_broker import TlsBroker

WITH_DATABASE = ("replay publish toy", "dead-letters counts", "dead-letters list", "doctor")
WITHOUT = ("jobs list", "jobs show toy", "jobs allow toy 16", "events history toy", "doctor")


@pytest.fixture
def platform(bso: Command, tls_broker: TlsBroker, mysql_url: str, tmp_path: Path) -> Iterator[Command]:
    """The command of somebody whose broker is reached by TLS, with a worker that reaches it so, too."""
    url = tls_broker.url
    bso.environment |= {"BSO_URL": url, "BSO_AMQP_URL": url, "BSO_DATABASE_URL": mysql_url}
    asyncio.run(upgrade(mysql_url))
    worker = started_worker(tmp_path / "worker.log", url, mysql_url)
    yield bso
    worker.kill()


@pytest.mark.slow
def test_each_command_speaks_tls_and_says_so_where_it_cannot_verify_the_broker(
    platform: Command, training: list[str], tls_broker: TlsBroker
) -> None:
    tail = platform.start("events", "tail", "toy", "--type", "trial_ended", "--count", 1, "--json")
    assert tail.stderr is not None
    assert "following" in tail.stderr.readline()
    platform.ok("recur", 1, "--", *training, "goes")
    printed, _ = tail.communicate(timeout=PATIENCE_S)
    assert json.loads(printed)["payload"]["trial_number"] == 1
    for command in WITH_DATABASE:
        platform.ok(*command.split())
    del platform.environment["BSO_DATABASE_URL"]
    for command in WITHOUT:
        platform.ok(*command.split())

    unverified = tls_broker.url_with()
    platform.environment |= {"BSO_URL": unverified, "BSO_AMQP_URL": unverified}
    for command in ("jobs list", "jobs allow toy 16", "events history toy", "events tail", "dead-letters list"):
        assert "does not know the authority that issued it" in platform.refused(*command.split()), command
