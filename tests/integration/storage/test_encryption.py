"""TLS with database servers: who is believed, what each refusal says, and what others on the wire can read."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import make_url

from bso.domain.errors import Misconfigured
from bso.service.engine import Engine
from bso.service.errors import StoreLoginRefused, StoreUnavailable
from bso.storage import SqlStore, open_store
from bso.storage.errors import BadDatabaseUrl
from bso.tls import TlsFailed
from bso_migrations import check, current, upgrade
from tests.contract.storage.job_requests import ask, begin, registration
from tests.integration.storage.conftest import LIMITS, OpenAt
from tests.servers import PATIENCE_S, TcpProxy, eventually_async
from tests.servers.certificates import Authority, Certificate
from tests.servers.encrypted import PASSWORD, EncryptedDatabase, copied
from tools.private_servers.ports import ClaimedPorts

TLS = "TLSv1.3"
ELSEWHERE = "0.0.0.0"
"""An address that leads to this machine, but is none of loopback's."""


@pytest.fixture(params=["encrypted_mariadb", "encrypted_postgresql"])
def database(request: pytest.FixtureRequest) -> EncryptedDatabase:
    """A server of each kind in turn, with a certificate for 127.0.0.1."""
    found: EncryptedDatabase = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """An authority that the servers have nothing to do with."""
    folder = tmp_path / "stranger"
    folder.mkdir()
    return Authority(folder)


async def refusal(store: SqlStore, kind: type[Exception] | tuple[type[Exception], ...] = TlsFailed) -> str:
    """What the store says why it has no connection; it must not say that of any other kind of trouble."""
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(kind) as raised:
            await store.ping()
    assert PASSWORD not in str(raised.value)
    return str(raised.value)


async def test_a_server_whose_authority_is_known_and_whose_name_is_right_is_trusted(
    database: EncryptedDatabase, open_at: OpenAt
) -> None:
    url = database.create_database()
    await upgrade(url)
    store = open_at(url)
    await ask(Engine(store), registration())
    await begin(Engine(store))
    assert await store.tls_version() == TLS
    assert (await current(url)).found is not None
    assert await check(url) == ()


async def test_verify_ca_takes_any_name(database: EncryptedDatabase, open_at: OpenAt) -> None:
    store = open_at(database.create_database(host="localhost", tls="verify-ca"))
    assert await store.tls_version() == TLS


async def test_the_files_of_an_authority_alone_mean_that_it_is_verified(
    database: EncryptedDatabase, open_at: OpenAt
) -> None:
    store = open_at(database.create_database(tls=None))
    assert await store.tls_version() == TLS


async def test_on_loopback_and_where_it_is_switched_off_nothing_is_encrypted(
    database: EncryptedDatabase, open_at: OpenAt
) -> None:
    for host, mode in (("127.0.0.1", None), ("127.0.0.1", "off"), (ELSEWHERE, "off")):
        store = open_at(database.create_database("anyhow", host=host, tls=mode, tls_ca=None))
        assert await store.tls_version() is None


async def test_another_host_is_verified_unless_that_is_switched_off(
    database: EncryptedDatabase, open_at: OpenAt
) -> None:
    found = await refusal(open_at(database.create_database("anyhow", host=ELSEWHERE, tls=None, tls_ca=None)))
    assert "does not know the authority" in found
    database.show(database.authority.issue("elsewhere", ELSEWHERE))
    try:
        store = open_at(database.create_database(host=ELSEWHERE))
        await eventually_encrypted(store)
    finally:
        database.show(database.certificate)


async def eventually_encrypted(store: SqlStore) -> None:
    """Wait until the server shows a certificate that the store believes: a server takes a moment to read its files."""

    async def is_encrypted() -> bool:
        await store.engine.dispose()
        try:
            return await store.tls_version() == TLS
        except Misconfigured:
            return False

    await eventually_async(is_encrypted, what="a connection with the new certificate")


async def eventually_refused(store: SqlStore, words: str) -> None:
    """Wait until the server shows a certificate that the store refuses with these words."""

    async def is_refused() -> bool:
        await store.engine.dispose()
        try:
            await store.ping()
        except TlsFailed as error:
            return words in str(error)
        return False

    await eventually_async(is_refused, what=f"a refusal that says {words!r}")


async def test_an_authority_that_nobody_knows(database: EncryptedDatabase, open_at: OpenAt) -> None:
    found = await refusal(open_at(database.create_database(tls_ca=None)))
    assert "does not know the authority" in found
    assert "tls_ca=FILE" in found


async def test_another_authority_than_the_named_one(
    database: EncryptedDatabase, stranger: Authority, open_at: OpenAt
) -> None:
    for mode in ("verify", "verify-ca"):
        store = open_at(database.create_database(tls=mode, tls_ca=stranger.ca))
        assert "does not know the authority" in await refusal(store)


async def test_another_name_than_the_certificates(database: EncryptedDatabase, open_at: OpenAt) -> None:
    found = await refusal(open_at(database.create_database(host="localhost")))
    assert "not valid for 'localhost'" in found
    assert "the address must name the server as its certificate does" in found


async def test_a_certificate_that_has_expired(database: EncryptedDatabase, open_at: OpenAt) -> None:
    store = open_at(database.create_database())
    await store.ping()
    database.show(database.authority.issue("expired", "127.0.0.1", expired=timedelta(hours=1)))
    try:
        await eventually_refused(store, "has expired")
    finally:
        database.show(database.certificate)
    await eventually_encrypted(store)


async def test_a_login_that_needs_tls_is_not_refused_for_its_password(
    database: EncryptedDatabase, open_at: OpenAt
) -> None:
    store = open_at(database.create_database("secured", tls="off", tls_ca=None))
    found = await refusal(store, StoreLoginRefused)
    assert "which came unencrypted" in found
    assert "put tls=verify into the address" in found


@pytest.mark.parametrize("code", [1045, 3159])
async def test_a_server_that_needs_tls_is_not_taken_for_a_wrong_password(
    encrypted_mariadb: EncryptedDatabase, open_at: OpenAt, tcp_proxy: Callable[[str], TcpProxy], code: int
) -> None:
    proxy = tcp_proxy(encrypted_mariadb.create_database("anyhow", tls="off", tls_ca=None))
    # MariaDB refuses such a login as it refuses a wrong password; MySQL has a number of its own for it.
    proxy.replaces = (b"\xff\x15\x04#28000", b"\xff" + code.to_bytes(2, "little") + b"#08004")
    encrypted_mariadb.server.execute("SET GLOBAL require_secure_transport = ON")
    try:
        found = await refusal(open_at(proxy.url), StoreLoginRefused if code == 1045 else TlsFailed)
    finally:
        encrypted_mariadb.server.execute("SET GLOBAL require_secure_transport = OFF")
    assert "put tls=verify into the address" in found
    assert ("takes encrypted connections only" in found) == (code == 3159)


async def test_a_wrong_password_is_still_called_one(database: EncryptedDatabase, open_at: OpenAt) -> None:
    url = make_url(database.create_database()).set(password="wrong")
    found = await refusal(open_at(url.render_as_string(hide_password=False)), StoreLoginRefused)
    assert "check user, password and name of the database" in found
    assert "unencrypted" not in found


async def test_a_client_shows_its_certificate(database: EncryptedDatabase, open_at: OpenAt) -> None:
    own = database.authority.issue("worker", common_name="certified")
    both = own.cert.with_name("worker-both.pem")
    both.write_bytes(own.key.read_bytes() + own.cert.read_bytes())
    for cert, key in ((own.cert, own.key), (both, None)):
        url = database.create_database("certified", tls_cert=cert, tls_key=key)
        await upgrade(url)
        assert await open_at(url).tls_version() == TLS


async def test_a_client_without_the_certificate_that_its_login_needs(
    database: EncryptedDatabase, open_at: OpenAt
) -> None:
    found = await refusal(open_at(database.create_database("certified")), StoreLoginRefused)
    assert "needs a certificate (tls_cert=FILE)" in found


async def test_a_client_with_a_certificate_of_another_authority(
    database: EncryptedDatabase, stranger: Authority, open_at: OpenAt
) -> None:
    own = stranger.issue("worker", common_name="certified")
    store = open_at(database.create_database("certified", tls_cert=own.cert, tls_key=own.key))

    async def is_clear() -> bool:
        found = await refusal(store, (TlsFailed, StoreUnavailable))
        assert "tls_cert=" in found
        return "does not accept the one that it got" in found and "UNKNOWN_CA" in found

    # The end of the connection may overtake the server's alert.
    await eventually_async(is_clear, what="a refusal that says which certificate is wrong")


@pytest.fixture(params=["mysql_url", "postgres_url"])
def plain_url(request: pytest.FixtureRequest, mariadb_server: object, postgresql_server: object) -> str:
    """A database on a server without a certificate, of each kind in turn."""
    url: str = request.getfixturevalue(request.param)
    return url


class Wire:
    """What passes a proxy in either direction."""

    def __init__(self) -> None:
        self.requests, self.replies = bytearray(), bytearray()

    def __call__(self, is_request: bool) -> Callable[[bytes], None]:
        return self.requests.extend if is_request else self.replies.extend


async def test_a_server_without_tls_is_never_reached_in_the_clear(plain_url: str, open_at: OpenAt) -> None:
    wire = Wire()
    with TcpProxy(plain_url, watch=wire) as proxy:
        url = make_url(proxy.url).set(username="somebody", password=PASSWORD)
        store = open_at(url.update_query_dict({"tls": "verify"}).render_as_string(hide_password=False))
        found = await refusal(store)
    assert "offers no TLS" in found
    assert "tls=off" in found
    assert wire.requests
    assert b"somebody" not in wire.requests


def in_clear(url: str) -> tuple[bytes, bytes]:
    """What a man in the middle replaces in the replies of a server, so that it seems to offer no TLS."""
    address = make_url(url)
    if address.get_backend_name() == "postgresql":
        return b"S", b"N"
    assert address.host is not None
    assert address.port is not None
    with socket.create_connection((address.host, address.port)) as connection:
        greeting = connection.recv(1024)
    # Four bytes of header, the protocol, the version up to a zero, the session's id, eight random bytes and a zero; see
    # https://dev.mysql.com/doc/dev/mysql-server/latest/PAGE_PROTOCOL.html, "Protocol::HandshakeV10".
    start = greeting.index(b"\0", 5) + 1 + 4 + 8 + 1
    offered = greeting[start : start + 7]
    assert offered[1] & 0x08, "the server offers no TLS"
    return offered, bytes((offered[0], offered[1] & ~0x08, *offered[2:]))


async def test_nobody_in_the_middle_can_take_tls_out(database: EncryptedDatabase, open_at: OpenAt) -> None:
    url, wire = database.create_database("anyhow"), Wire()
    with TcpProxy(url, watch=wire) as proxy:
        proxy.replaces = in_clear(url)
        found = await refusal(open_at(proxy.url))
    assert "offers no TLS" in found
    assert wire.requests
    assert b"anyhow" not in wire.requests


@pytest.mark.parametrize("last", ["the greeting", "the handshake"])
async def test_a_server_that_hangs_before_the_login_is_given_up(
    database: EncryptedDatabase, open_at: OpenAt, tcp_proxy: Callable[[str], TcpProxy], last: str
) -> None:
    proxy = tcp_proxy(database.create_database())
    if last == "the handshake":
        proxy.stall_replies_after(b"\x16\x03")  # the client's first record of TLS
    else:
        proxy.stall_replies()
    found = await refusal(open_at(proxy.url, replace(LIMITS, connect_s=0.5)), StoreUnavailable)
    assert "did not finish the handshake within 0.5 s" in found
    assert proxy.is_holding


async def test_a_server_that_closes_the_connection_in_the_handshake_is_asked_why(
    database: EncryptedDatabase, open_at: OpenAt, tcp_proxy: Callable[[str], TcpProxy]
) -> None:
    proxy = tcp_proxy(database.create_database())
    proxy.stall_replies_after(b"\x16\x03")
    asking = asyncio.create_task(refusal(open_at(proxy.url), StoreUnavailable))
    await eventually_async(lambda: proxy.is_holding, what="the client's first record of TLS")
    proxy.drop()
    found = await asking
    assert "closed the connection before the login was over: its log says why" in found
    assert "needs a certificate (tls_cert=FILE)" in found


@pytest.mark.parametrize(("name", "value"), [("PGSSLMODE", "disable"), ("PGSSLNEGOTIATION", "direct")])
async def test_variables_of_postgresqls_own_have_no_say(
    encrypted_postgresql: EncryptedDatabase,
    open_at: OpenAt,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
) -> None:
    monkeypatch.setenv(name, value)
    assert await open_at(encrypted_postgresql.create_database()).tls_version() == TLS
    plain = open_at(encrypted_postgresql.create_database("anyhow", tls="off", tls_ca=None))
    assert await plain.tls_version() is None


async def test_the_wire_shows_neither_statements_nor_jobs_nor_logins(
    database: EncryptedDatabase, open_at: OpenAt
) -> None:
    words = (b"SELECT", b"INSERT", b"COMMIT", b"secret-project", b"anyhow")
    for mode, ca, expected in (("verify", database.authority.ca, set()), ("off", None, set(words))):
        wire, url = Wire(), database.create_database("anyhow", tls=mode, tls_ca=ca)
        await upgrade(url)
        with TcpProxy(url, watch=wire) as proxy:
            engine = Engine(open_at(proxy.url))
            await ask(engine, registration("secret-project"))
            await begin(engine, "secret-project")
        seen = bytes(wire.requests + wire.replies)
        assert seen
        assert {word for word in words if word in seen} == expected


async def test_certificates_are_renewed_under_an_open_store(
    database: EncryptedDatabase, stranger: Authority, open_at: OpenAt, tmp_path: Path
) -> None:
    ca = tmp_path / "trusted.pem"
    ca.write_bytes(database.authority.ca.read_bytes())
    store = open_at(database.create_database(tls_ca=ca))
    await store.ping()
    database.show(stranger.issue("server", "127.0.0.1"))
    try:
        await eventually_refused(store, "does not know the authority")
        ca.write_bytes(stranger.ca.read_bytes())
        assert await store.tls_version() == TLS
    finally:
        database.show(database.certificate)


@pytest.mark.parametrize("broken", ["the authority", "the certificate", "the key"])
async def test_a_file_that_was_renewed_badly_is_named_and_may_be_mended(
    database: EncryptedDatabase, open_at: OpenAt, tmp_path: Path, broken: str
) -> None:
    own = copied(database.authority.issue("worker", common_name="certified"), tmp_path)
    ca = tmp_path / "trusted.pem"
    ca.write_bytes(database.authority.ca.read_bytes())
    store = open_at(database.create_database("certified", tls_ca=ca, tls_cert=own.cert, tls_key=own.key))
    await store.ping()
    file = {"the authority": ca, "the certificate": own.cert, "the key": own.key}[broken]
    good = file.read_bytes()
    file.write_bytes(b"half a certifi")
    await store.ping()  # the connection that is there goes on
    await store.engine.dispose()
    assert str(own.cert if broken == "the key" else file) in await refusal(store)
    file.unlink()
    assert f"{file} in the address cannot be read" in await refusal(store)
    file.write_bytes(good)
    await store.ping()


def test_files_that_cannot_be_used_are_an_error_at_the_start(tmp_path: Path, stranger: Authority) -> None:
    own: Certificate = stranger.issue("worker", common_name="worker")
    other = stranger.issue("other", common_name="other")
    for query in (
        f"tls_ca={tmp_path / 'missing.pem'}",
        f"tls_ca={own.key}",
        f"tls_ca={tmp_path}",
        f"tls_cert={own.cert}&tls_key={other.key}",
        f"tls_cert={own.cert}",
    ):
        with pytest.raises(TlsFailed, match="tls_c"):
            open_store(f"mysql://me@db/bso?{query}")


@pytest.mark.parametrize("backend", ["mysql", "postgresql"])
async def test_other_work_goes_on_while_the_files_are_read(tmp_path: Path, stranger: Authority, backend: str) -> None:
    known = tmp_path / "known.pem"
    known.write_text(stranger.ca.read_text(encoding="ascii") * 3000, encoding="ascii")
    with ClaimedPorts(1) as claimed:  # nobody is there
        store = open_store(f"{backend}://me@127.0.0.1:{claimed.numbers[0]}/bso?tls_ca={known}")
        connecting = asyncio.create_task(refusal(store, StoreUnavailable))
        turns = 0
        while not connecting.done():
            await asyncio.sleep(0)  # noqa: TID251  # lets the other task go on
            turns += 1
    await connecting
    assert turns > 500, "the event loop has stood still"


@pytest.mark.parametrize("option", ["ssl", "ssl_mode", "sslmode", "zzz", "charset"])
async def test_an_option_that_is_unknown_lists_the_known_ones(database: EncryptedDatabase, option: str) -> None:
    url = f"{database.create_database()}&{option}=true"
    for use in (lambda: open_store(url).ping(), lambda: upgrade(url)):
        with pytest.raises(BadDatabaseUrl, match=rf"unknown option {option}; known are tls, tls_ca, tls_cert, tls_key"):
            await use()
