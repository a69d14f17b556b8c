"""The fixtures of tests.servers (a pytest plugin, loaded by tests/conftest.py), and marks from folders and fixtures."""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from tests.servers import given
from tests.servers.certificates import Authority
from tests.servers.encrypted import EncryptedDatabase
from tests.servers.leaks import leaks_in_arguments, leaks_of
from tests.servers.proxy import TcpProxy
from tests.servers.tls_broker import TlsBroker
from tools.private_servers import Management, MariaDB, PostgreSQL, PrivateServer, RabbitMQ, ServerMissing

Server = TypeVar("Server", bound=PrivateServer)

KINDS = ("unit", "contract", "integration", "faults", "acceptance", "training", "gpu", "packaging", "browser")
# What can be a MySQL 9 or a RabbitMQ 4 that the environment names, and what never is.
NEWEST_FIXTURES = {"amqp_url", "rabbitmq_management", "mysql_url"}
PRIVATE_FIXTURES = {"rabbitmq_server", "mariadb_server", "postgresql_server"}
DATABASES = ["sqlite", "mariadb", "postgres"] + (["mysql"] if given.DATABASE_URL else [])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the kind that its folder names, and as `newest` where the servers may be newer ones."""
    for item in items:
        for kind in KINDS:
            if kind in item.path.relative_to(item.config.rootpath).parts:
                item.add_marker(kind)
        asked_for = set(getattr(item, "fixturenames", ()))
        parameters: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
        database = parameters.get("database_url")
        may_be_given = database is None and asked_for & NEWEST_FIXTURES and not asked_for & PRIVATE_FIXTURES
        if database == "mysql" or may_be_given:
            item.add_marker("newest")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a test fail that has printed, logged or written a password of a private server, or shown one to ps."""
    report = yield
    found = [
        *(leaks_in_arguments() if call.when == "call" else ()),
        *(leaks_of(item, report) if call.when == "teardown" else ()),
    ]
    if report.passed and found:
        report.outcome, report.longrepr = "failed", "\n".join(["a password can be seen:", *found])
    return report


# Who takes a database or a virtual host starts its server again if that has died: one loss is no loss of all tests.
@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitMQ]:
    """The private RabbitMQ of this run. Who kills or freezes it takes `breakable_rabbitmq` instead."""
    yield from _running(RabbitMQ)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Issues the certificates of the brokers with TLS."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    authority.issue("server", "localhost")
    return authority


@pytest.fixture(scope="session")
def tls_rabbitmq(authority: Authority) -> Iterator[RabbitMQ]:
    """A private RabbitMQ that listens with TLS, too, and lets a login in by its certificate."""
    yield from _running(lambda: RabbitMQ(certificates=authority.folder))


@pytest.fixture(scope="session")
def asking_rabbitmq(authority: Authority) -> Iterator[RabbitMQ]:
    """One that lets nobody in by TLS who does not show a certificate of the authority."""
    yield from _running(lambda: RabbitMQ(certificates=authority.folder, asks_for_certificate=True))


@pytest.fixture
def tls_broker(tls_rabbitmq: RabbitMQ, authority: Authority) -> Iterator[TlsBroker]:
    """A new, empty virtual host for this test, to be reached by TLS."""
    yield from _tls_broker(tls_rabbitmq, authority)


@pytest.fixture
def asking_broker(asking_rabbitmq: RabbitMQ, authority: Authority) -> Iterator[TlsBroker]:
    """The same, of a server that asks for a certificate."""
    yield from _tls_broker(asking_rabbitmq, authority)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDB]:
    """The private MariaDB of this run. Who kills or freezes it takes `breakable_mariadb` instead."""
    yield from _running(MariaDB)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgreSQL]:
    """The private PostgreSQL of this run. Who kills or freezes it takes `breakable_postgresql` instead."""
    yield from _running(PostgreSQL)


@pytest.fixture(scope="session")
def encrypted_mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EncryptedDatabase]:
    """A private MariaDB with a certificate."""
    yield from _encrypted(MariaDB(), tmp_path_factory.mktemp("mariadb-certificates"))


@pytest.fixture(scope="session")
def encrypted_postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EncryptedDatabase]:
    """A private PostgreSQL with a certificate."""
    yield from _encrypted(PostgreSQL(), tmp_path_factory.mktemp("postgresql-certificates"))


@pytest.fixture
def breakable_rabbitmq(rabbitmq_server: RabbitMQ) -> Iterator[RabbitMQ]:
    """The private RabbitMQ, to be killed and frozen at will: afterwards it runs again for the next test."""
    yield from _mended(rabbitmq_server)


@pytest.fixture
def breakable_mariadb(mariadb_server: MariaDB) -> Iterator[MariaDB]:
    """The private MariaDB, to be killed and frozen at will: afterwards it runs again for the next test."""
    yield from _mended(mariadb_server)


@pytest.fixture
def breakable_postgresql(postgresql_server: PostgreSQL) -> Iterator[PostgreSQL]:
    """The private PostgreSQL, to be killed and frozen at will: afterwards it runs again for the next test."""
    yield from _mended(postgresql_server)


@pytest.fixture
def rabbitmq_management(request: pytest.FixtureRequest) -> Management:
    """The management interface of the server behind `amqp_url`: virtual hosts, users, permissions, connections."""
    if given.AMQP_URL is None or "rabbitmq_server" in request.fixturenames:
        server: RabbitMQ = request.getfixturevalue("rabbitmq_server")
        return server.start().management
    if given.AMQP_MANAGEMENT_URL is None:
        _missing("BSO_TEST_AMQP_URL is set without BSO_TEST_AMQP_MANAGEMENT_URL")
    return Management(str(given.AMQP_MANAGEMENT_URL), given.AMQP_URL)


@pytest.fixture
def amqp_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A new, empty virtual host for this test, with everything permitted to its login.

    Only a given server without its management interface is used as it is: whatever earlier runs left is there.
    """
    uses_given = given.AMQP_URL is not None and "rabbitmq_server" not in request.fixturenames
    if uses_given and given.AMQP_MANAGEMENT_URL is None:
        yield str(given.AMQP_URL)
        return
    management: Management = request.getfixturevalue("rabbitmq_management")
    url = management.create_vhost()
    yield url
    if management.answers():
        management.delete_vhost(url)


@pytest.fixture
def mysql_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A new, empty database for this test: on the given MySQL or MariaDB, else on the private MariaDB."""
    if given.DATABASE_URL is None or "mariadb_server" in request.fixturenames:
        server: MariaDB = request.getfixturevalue("mariadb_server")
        yield server.start().create_database()
        return
    yield from _given_database(given.DATABASE_URL)


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A new, empty database for this test: on the given PostgreSQL, else on the private one."""
    if given.POSTGRES_URL is None or "postgresql_server" in request.fixturenames:
        server: PostgreSQL = request.getfixturevalue("postgresql_server")
        yield server.start().create_database()
        return
    yield from _given_database(given.POSTGRES_URL)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file for this test, not created yet."""
    return f"sqlite+aiosqlite:///{tmp_path / 'bso.sqlite'}"


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A new, empty database of each kind in turn: sqlite, mariadb, postgres, and the given mysql where there is one."""
    match request.param:
        case "mariadb":
            server: MariaDB = request.getfixturevalue("mariadb_server")
            yield server.start().create_database()
        case kind:
            yield request.getfixturevalue(f"{kind}_url")


@pytest.fixture
def tcp_proxy() -> Iterator[Callable[[str], TcpProxy]]:
    """A function that starts a TcpProxy in front of a URL's server; the proxies are closed after the test."""
    with ExitStack() as stack:
        yield lambda url: stack.enter_context(TcpProxy(url, default_port=5672 if url.startswith("amqp:") else None))


def _tls_broker(server: RabbitMQ, authority: Authority) -> Iterator[TlsBroker]:
    url = server.start().create_vhost()
    yield TlsBroker(server=server, authority=authority, plain_url=url)
    server.management.delete_vhost(url)


def _running(new_server: Callable[[], Server]) -> Iterator[Server]:
    server = new_server()
    try:
        try:
            server.start()
        except ServerMissing as missing:
            _missing(str(missing))
        yield server
    finally:
        server.close()


def _encrypted(server: MariaDB | PostgreSQL, folder: Path) -> Iterator[EncryptedDatabase]:
    database = EncryptedDatabase(server, folder)
    try:
        try:
            database.start()
        except ServerMissing as missing:
            _missing(str(missing))
        yield database
    finally:
        server.close()


def _mended(server: Server) -> Iterator[Server]:
    yield server
    if server.is_running:
        server.thaw()
    server.start()


def _given_database(server_url: str) -> Iterator[str]:
    url = given.create_database(server_url)
    yield url
    given.drop_database(server_url, url)


def _missing(reason: str) -> None:
    """Skip at home; in CI, where everything is to be there, fail."""
    if os.environ.get("CI"):
        pytest.fail(f"CI is set, and {reason}")
    pytest.skip(reason)
