"""Connections to a broker by TLS: what is verified, and that whatever is wrong is an error with the remedy."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
import uvloop

from bso.tls import TlsFailed
from bso_broker.connection import BrokerAddress, connect
from bso_broker.errors import BrokerUnreachable, LoginRefused, NotPermitted
from bso_broker.rabbit import RabbitBroker
from bso_broker.rpc import RpcClient
from tests.servers import PATIENCE_S
from tests.servers.certificates import Authority, Certificate
from tests.servers.tls_broker import TlsBroker
from tools.private_servers.ports import ClaimedPorts

Loop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Loop:
    """Trainings run in one, workers in the other, and each has its own way to speak TLS and to report errors."""
    factory: Loop = request.param
    return factory


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """An authority that no broker knows."""
    return Authority(tmp_path)


def encryption_of(url: str, loop: Loop, *, timeout_s: float = PATIENCE_S) -> str:
    """Connect, in an event loop of this kind, and hang up; how the connection was encrypted."""

    async def connecting() -> str:
        connection = await connect(BrokerAddress(url=url, connect_timeout_s=timeout_s), name="test")
        found = connection.sockets.encryption
        await connection.close()
        return found

    async def connecting_in_time() -> str:
        async with asyncio.timeout(2 * PATIENCE_S):  # the signal that ends a test which hangs does not end uvloop
            return await connecting()

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(connecting_in_time())


def shown(certificate: Certificate) -> dict[str, Any]:
    """The options that show a certificate to a broker."""
    return {"tls_cert": certificate.cert, "tls_key": certificate.key}


def test_a_certificate_that_a_known_authority_has_issued_for_the_host_is_verified(
    tls_broker: TlsBroker, loop: Loop
) -> None:
    assert encryption_of(tls_broker.url, loop) == "encrypted (TLSv1.3), certificate verified"
    assert encryption_of(tls_broker.plain_url, loop) == "not encrypted"


def test_a_certificate_of_an_unknown_authority_is_refused(
    tls_broker: TlsBroker, stranger: Authority, loop: Loop
) -> None:
    wrong: list[dict[str, Any]] = [{}, {"tls_ca": stranger.ca}, {"tls": "verify-ca"}]
    for options in wrong:
        with pytest.raises(TlsFailed, match=r"does not know the authority that issued it.*tls_ca=FILE"):
            encryption_of(tls_broker.url_with(**options), loop)


def test_a_certificate_for_another_host_is_refused_unless_the_address_says_otherwise(
    tls_broker: TlsBroker, loop: Loop
) -> None:
    with pytest.raises(TlsFailed, match=r"127\.0\.0\.1.*must name the server as its certificate does"):
        encryption_of(tls_broker.url_with(host="127.0.0.1", tls_ca=tls_broker.authority.ca), loop)
    url = tls_broker.url_with(host="127.0.0.1", tls_ca=tls_broker.authority.ca, tls="verify-ca")
    assert encryption_of(url, loop) == "encrypted (TLSv1.3), certificate verified, for whatever host"


def test_a_certificate_that_has_expired_is_refused(tls_broker: TlsBroker, loop: Loop) -> None:
    tls_broker.renew(expired=timedelta(hours=1))
    try:
        with pytest.raises(TlsFailed, match="has expired: its operator has to renew it"):
            encryption_of(tls_broker.url, loop)
    finally:
        tls_broker.renew()
    assert encryption_of(tls_broker.url, loop)


@pytest.mark.parametrize("option", ["tls_ca", "tls_cert"])
def test_a_file_that_is_missing_or_holds_no_certificate_is_named(
    tls_broker: TlsBroker, tmp_path: Path, option: str, loop: Loop
) -> None:
    path = tmp_path / "certificate.pem"
    given: dict[str, Any] = {option: path}
    with pytest.raises(TlsFailed, match=f"{option}={path} in the address cannot be read"):
        encryption_of(tls_broker.url_with(**given), loop)
    path.write_text("nothing")
    with pytest.raises(TlsFailed, match=f"{option}={path}.*PEM"):
        encryption_of(tls_broker.url_with(**given), loop)


def test_tls_at_a_port_without_it_says_so(tls_broker: TlsBroker, loop: Loop) -> None:
    with pytest.raises(TlsFailed, match="does the server speak TLS on this port"):
        encryption_of(tls_broker.tls_at_the_plain_port, loop)


def test_no_tls_at_a_port_for_it_says_so(tls_broker: TlsBroker, loop: Loop) -> None:
    with pytest.raises(TlsFailed, match="answers amqp:// with TLS: write amqps://"):
        encryption_of(tls_broker.no_tls_at_the_tls_port, loop)


def test_nobody_at_the_port_is_unreachable_also_with_tls(loop: Loop) -> None:
    with ClaimedPorts(1) as claimed, pytest.raises(BrokerUnreachable, match="is it running"):
        encryption_of(f"amqps://localhost:{claimed.numbers[0]}/", loop)


def test_a_server_that_hangs_in_the_handshake_is_unreachable_at_the_deadline(loop: Loop) -> None:
    with silent_port() as port, pytest.raises(BrokerUnreachable, match=r"did not answer within 0\.3 s"):
        encryption_of(f"amqps://localhost:{port}/", loop, timeout_s=0.3)


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port where the system accepts connections, and nobody says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_broker_that_asks_for_a_certificate_gets_it(
    asking_broker: TlsBroker, authority: Authority, loop: Loop
) -> None:
    trainers = authority.issue("trainer", "localhost", common_name="trainer")
    url = asking_broker.url_with(tls_ca=authority.ca, **shown(trainers))
    assert encryption_of(url, loop) == "encrypted (TLSv1.3), certificate verified"


@pytest.mark.parametrize("certificate", ["none", "of another authority", "expired"])
def test_a_broker_that_asks_for_a_certificate_and_gets_no_good_one_says_so(
    asking_broker: TlsBroker, stranger: Authority, certificate: str, loop: Loop
) -> None:
    authority = asking_broker.authority
    wrong: dict[str, Any] = {}
    if certificate == "of another authority":
        wrong = shown(stranger.issue("trainer", "localhost"))
    elif certificate == "expired":
        wrong = shown(authority.issue("late", "localhost", expired=timedelta(hours=1)))
    # The broker refuses after the handshake, and ends the connection at once: where this side has already sent
    # something, it may learn of the end alone, whose words name the possible cause.
    asks = r"asks for a certificate, and does not accept.*tls_cert=FILE|does it ask for a certificate \(tls_cert=FILE\)"
    with pytest.raises((TlsFailed, BrokerUnreachable), match=asks):
        encryption_of(asking_broker.url_with(tls_ca=authority.ca, **wrong), loop)


class Trainer:
    """A login with no password that it could use, and a certificate."""

    def __init__(self, broker: TlsBroker) -> None:
        self.name = f"trainer-{broker.plain_url.rpartition('/')[2]}"
        management = broker.server.management
        management.add_user(broker.plain_url, self.name, "unknown", configure=".*", write=".*", read=".*")
        self._broker = broker

    def url(self, *, name: str | None = None, common_name: str | None = None) -> str:
        """Its address, or one that names somebody else, with a certificate of its own, or of somebody else."""
        authority = self._broker.authority
        certificate = authority.issue("login", "localhost", common_name=common_name or self.name)
        url = self._broker.url_with(tls_ca=authority.ca, auth="external", **shown(certificate))
        parts = urlsplit(url)
        return parts._replace(netloc=f"{name or self.name}@{parts.netloc.rpartition('@')[2]}").geturl()


@pytest.fixture
def trainer(tls_broker: TlsBroker) -> Trainer:
    return Trainer(tls_broker)


async def test_a_certificate_logs_a_login_in_and_the_broker_believes_its_user_id(
    tls_broker: TlsBroker, trainer: Trainer
) -> None:
    async with RabbitBroker(tls_broker.plain_url) as broker:
        await broker.declare()
        consumer = broker.command_consumer()
        await consumer.start()
        caller = RpcClient(trainer.url())
        await caller.start()
        call = asyncio.create_task(caller.call(b"body", message_id="1", timeout_s=PATIENCE_S))
        async with asyncio.timeout(PATIENCE_S):
            (delivery,) = await consumer.next_batch()
        assert delivery.user_id == trainer.name
        call.cancel()
        await caller.close()
        await consumer.close()


def test_a_certificate_of_nobody_the_broker_knows_is_refused(trainer: Trainer, loop: Loop) -> None:
    with pytest.raises(LoginRefused, match=r"knows no login for the certificate given.*adds the user 'nobody'"):
        encryption_of(trainer.url(name="nobody", common_name="nobody"), loop)


async def test_an_address_that_names_another_login_than_its_certificate_says_so(
    tls_broker: TlsBroker, trainer: Trainer
) -> None:
    async with RabbitBroker(tls_broker.plain_url) as broker:
        await broker.declare()
    caller = RpcClient(trainer.url(name="somebody"))
    await caller.start()
    try:
        with pytest.raises(NotPermitted, match=f"somebody.*{trainer.name}"):
            await caller.call(b"body", message_id="1", timeout_s=3.0)
    finally:
        await caller.close()


async def test_a_broker_that_takes_no_certificates_for_logins_says_so(amqp_url: str, authority: Authority) -> None:
    own = shown(authority.issue("login", "localhost", common_name="login"))
    async with tls_in_front_of(amqp_url, authority.issue("front", "localhost")) as port:
        url = f"amqps://login@localhost:{port}/?{urlencode({'tls_ca': authority.ca, 'auth': 'external', **own})}"
        with pytest.raises(LoginRefused, match=r"does not offer to log in by certificate.*auth_mechanisms"):
            await connect(BrokerAddress(url=url), name="test")


@contextlib.asynccontextmanager
async def tls_in_front_of(amqp_url: str, certificate: Certificate) -> AsyncIterator[int]:
    """A port that speaks TLS and forwards to the broker."""
    target = urlsplit(amqp_url)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.cert, certificate.key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection(target.hostname, target.port)
        await asyncio.gather(pump(reader, to_broker), pump(from_broker, writer))

    server = await asyncio.start_server(serve, "localhost", 0, ssl=context)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    writer.close()
