"""RabbitMQ and MariaDB, started with what deploy ships, identify themselves, and take encrypted connections only."""

import json
import re
import socket
import ssl
import struct
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiormq
import asyncmy
import pytest
from asyncmy.errors import OperationalError

from bso.tls import VERIFY, TlsOptions, tls_context
from tests.integration.deploy.shipped_servers import ShippedMariaDB, ShippedRabbitMQ, address, make_secrets
from tests.servers import eventually


def trusting(secrets: Path) -> ssl.SSLContext:
    """What a worker or a training makes of its address: the certificate must be valid, and for the host."""
    return tls_context(TlsOptions(mode=VERIFY, ca=secrets / "trusted/ca.pem"))


def serial_number(port: int, context: ssl.SSLContext, *, first: Callable[[socket.socket], object] = id) -> str:
    """That of the certificate which a server shows; ``first`` says what comes before TLS."""
    with socket.create_connection(("127.0.0.1", port)) as plain:
        first(plain)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            return str((secured.getpeercert() or {})["serialNumber"])


def ask_for_tls(connection: socket.socket) -> None:
    """What a client of MySQL sends after the greeting: a packet of 32 bytes that ends after its flags."""
    assert connection.recv(4096)
    protocol_41, tls, secure_connection = 0x200, 0x800, 0x8000
    flags = struct.pack("<IIB23x", protocol_41 | tls | secure_connection, 2**24, 45)
    connection.sendall(len(flags).to_bytes(3, "little") + b"\x01" + flags)


def serial_numbers(rabbitmq: ShippedRabbitMQ, mariadb: ShippedMariaDB, secrets: Path) -> set[str]:
    """Those of the certificates that new connections see."""
    context = trusting(secrets)
    ports = (rabbitmq.amqps_port, rabbitmq.https_port)
    return {serial_number(mariadb.port, context, first=ask_for_tls), *(serial_number(port, context) for port in ports)}


async def amqps(rabbitmq: ShippedRabbitMQ, login: str) -> aiormq.abc.AbstractConnection:
    url = address(rabbitmq.secrets, f"{login}_amqp_url", port=rabbitmq.amqps_port)
    return await aiormq.connect(url, context=trusting(rabbitmq.secrets))


async def mysql(mariadb: ShippedMariaDB, secrets: Path, context: ssl.SSLContext | None) -> Any:
    url = urlsplit((secrets / "database_url").read_text())
    login = {"user": url.username, "password": url.password, "database": "bso"}
    return await asyncmy.connect(host="127.0.0.1", port=mariadb.port, ssl=context, **login)


@pytest.mark.parametrize("login", ["worker", "training", "operator"])
async def test_the_broker_lets_each_login_in_through_tls(rabbitmq: ShippedRabbitMQ, login: str) -> None:
    async with await amqps(rabbitmq, login) as connection:
        channel = await connection.channel()
        assert not channel.is_closed


def test_the_broker_listens_nowhere_without_tls(rabbitmq: ShippedRabbitMQ) -> None:
    listeners = rabbitmq.management.request("GET", "overview")["listeners"]
    protocols = {one["protocol"] for one in listeners}
    # "http" is this test's own way in.
    assert protocols - {"http", "clustering"} == {"amqp/ssl", "https", "https/prometheus"}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", rabbitmq.port))


def test_the_management_page_is_encrypted_with_the_same_certificate(rabbitmq: ShippedRabbitMQ) -> None:
    operator = urlsplit((rabbitmq.secrets / "operator_amqp_url").read_text())
    login = b64encode(f"{operator.username}:{operator.password}".encode()).decode()
    url = f"https://127.0.0.1:{rabbitmq.https_port}/api/whoami"
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})
    with urllib.request.urlopen(request, context=trusting(rabbitmq.secrets)) as answer:
        assert json.load(answer)["name"] == "bso-operator"


def test_metrics_of_the_broker_are_encrypted_with_the_same_certificate(rabbitmq: ShippedRabbitMQ) -> None:
    url = f"https://127.0.0.1:{rabbitmq.metrics_port}/metrics/per-object"

    def has_what_the_alerts_ask_for() -> bool:
        with urllib.request.urlopen(url, context=trusting(rabbitmq.secrets)) as answer:
            found = answer.read()
        return re.search(rb'rabbitmq_queue_messages_ready\{.*queue="bso.inbox"', found) is not None

    eventually(has_what_the_alerts_ask_for, what="the length of bso.inbox")


@pytest.mark.parametrize(
    ("version", "is_spoken"),
    [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_the_broker_speaks_no_tls_that_is_out_of_date(
    rabbitmq: ShippedRabbitMQ, version: ssl.TLSVersion, is_spoken: bool
) -> None:
    context = trusting(rabbitmq.secrets)
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("DEFAULT@SECLEVEL=0")  # our side would not offer the old versions
    for port in (rabbitmq.amqps_port, rabbitmq.https_port, rabbitmq.metrics_port):
        if is_spoken:
            assert serial_number(port, context)
        else:
            with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
                serial_number(port, context)


async def test_the_database_lets_workers_in_through_tls(mariadb: ShippedMariaDB, secrets: Path) -> None:
    connection = await mysql(mariadb, secrets, trusting(secrets))
    async with connection, connection.cursor() as cursor:
        await cursor.execute("SHOW STATUS LIKE 'Ssl_version'")
        assert await cursor.fetchall() in ((("Ssl_version", "TLSv1.3"),), (("Ssl_version", "TLSv1.2"),))


async def test_the_database_refuses_who_does_not_encrypt(mariadb: ShippedMariaDB, secrets: Path) -> None:
    with pytest.raises(OperationalError, match="Access denied"):  # MySQL names require_secure_transport
        await mysql(mariadb, secrets, None)
    await (await mysql(mariadb, secrets, trusting(secrets))).ensure_closed()  # the same login is good


async def test_a_stranger_does_not_trust_the_servers(mariadb: ShippedMariaDB, rabbitmq: ShippedRabbitMQ) -> None:
    context = tls_context(TlsOptions(mode=VERIFY))
    with pytest.raises(ssl.SSLCertVerificationError):
        serial_number(rabbitmq.amqps_port, context)
    with pytest.raises(OperationalError, match="certificate verify failed"):
        await mysql(mariadb, rabbitmq.secrets, context)


async def test_a_renewed_certificate_serves_new_connections_and_old_ones_go_on(
    rabbitmq: ShippedRabbitMQ, mariadb: ShippedMariaDB, secrets: Path
) -> None:
    async with await amqps(rabbitmq, "worker") as to_broker:
        to_database = await mysql(mariadb, secrets, trusting(secrets))
        async with to_database, to_database.cursor() as cursor:
            before = serial_numbers(rabbitmq, mariadb, secrets)
            make_secrets(secrets, "--renew")
            rabbitmq.control("eval", "ssl:clear_pem_cache().")
            mariadb.execute("FLUSH SSL")  # in MySQL: ALTER INSTANCE RELOAD TLS
            assert not before & serial_numbers(rabbitmq, mariadb, secrets)
            assert not (await to_broker.channel()).is_closed
            await cursor.execute("SELECT 1")
            assert await cursor.fetchall() == ((1,),)
