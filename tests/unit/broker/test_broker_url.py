"""What stands in the address of a broker behind the question mark."""

from pathlib import Path

import pytest

from bso.domain.errors import Misconfigured
from bso.storage.urls import database_url, tls_of
from bso.tls import TlsFailed
from bso_broker.connection import BrokerAddress
from bso_broker.errors import InvalidBrokerUrl

KNOWN = "auth, heartbeat, name, command_queue, tls, tls_ca, tls_cert, tls_key"


@pytest.mark.parametrize("option", ["cafile=/ca.pem", "no_verify_ssl=1", "timeout=3", "ssl_options=x", "verify=false"])
def test_an_unknown_option_is_named_and_the_known_ones_are_listed(option: str) -> None:
    with pytest.raises(InvalidBrokerUrl, match=f"unknown option {option.partition('=')[0]!r}.*{KNOWN}"):
        BrokerAddress(url=f"amqps://user@host/?{option}")


def test_the_value_of_an_option_is_not_shown_nor_a_name_that_may_be_the_rest_of_a_password() -> None:
    for url in ("amqp://user@host/?password=s3cret", "amqp://user:12?s3cret@host/"):
        with pytest.raises(InvalidBrokerUrl) as raised:
            BrokerAddress(url=url)
        assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("amqp://host/?tls=verify", "tls, which is for TLS, and begins with amqp://.*write amqps://.*5671"),
        ("amqp://host/?tls_ca=/ca.pem&tls_cert=/c.pem", "tls_ca, tls_cert, which is for TLS"),
        ("amqps://host/?tls=off", "take one out"),
        ("amqps://host/?tls=verify&tls=verify-ca", "the option tls more than once"),
        ("amqp://host/?heartbeat=often", "whole number of seconds"),
        ("amqp://host/?heartbeat=65535", "from 0 .none. to 65534"),
        ("amqp://host/?heartbeat=", "whole number of seconds"),
        ("amqp://host/?auth=magic", "one of plain, external"),
        ("amqp://host/?command_queue=stream", "command_queue in the broker URL is one of quorum, classic"),
        ("amqp://host/?command_queue=", "one of quorum, classic"),
        ("amqps://login@host/?auth=external", "expected amqps://LOGIN@host.*tls_cert=FILE"),
        ("amqps://host/?auth=external&tls_cert=/c.pem", "LOGIN"),
    ],
)
def test_a_wrong_option_says_what_was_expected(url: str, words: str) -> None:
    with pytest.raises(InvalidBrokerUrl, match=words):
        BrokerAddress(url=url)


@pytest.mark.parametrize(
    "query",
    [
        "tls=yes",
        "tls=required",
        "tls_key=/key.pem",
        "tls_ca=~nobody-of-this-name/ca.pem",
        "tls_ca=%00",
        "tls_ca=",
        "tls=",
    ],
)
def test_wrong_options_of_tls_are_refused_with_the_address(query: str) -> None:
    with pytest.raises(TlsFailed):
        BrokerAddress(url=f"amqps://host/?{query}")


@pytest.mark.parametrize("host", ["broker.example", "localhost", "127.0.0.1"])
def test_amqps_verifies_also_on_this_machine(host: str) -> None:
    assert BrokerAddress(url=f"amqps://{host}/").tls.mode == "verify"
    assert BrokerAddress(url=f"amqps://{host}/?tls=verify-ca").tls.mode == "verify-ca"
    assert not BrokerAddress(url=f"amqp://{host}/").tls.is_on


@pytest.mark.parametrize(
    ("url", "is_exposed"),
    [
        ("amqp://broker.example/", True),
        ("amqp://10.0.0.7/", True),
        ("amqps://broker.example/", False),
        ("amqp://localhost/", False),
        ("amqp://127.0.0.1/", False),
        ("amqp://[::1]/", False),
    ],
)
def test_a_plain_connection_to_another_machine_is_exposed(url: str, is_exposed: bool) -> None:
    assert BrokerAddress(url=url).is_exposed == is_exposed


def test_aiormq_gets_heartbeat_and_name_of_the_address_or_ours_and_nothing_of_tls() -> None:
    own = BrokerAddress(url="amqps://host/?tls_ca=/ca.pem&tls=verify", heartbeat_s=7).named("bso client")
    assert dict(own.query) == {"heartbeat": "7", "name": "bso client"}
    given = BrokerAddress(url="amqp://host/v?heartbeat=60&name=nightly&command_queue=classic", heartbeat_s=7).named(
        "bso client"
    )
    assert dict(given.query) == {"heartbeat": "60", "name": "nightly"}
    assert str(given).startswith("amqp://host/v?")


def test_whatever_is_wrong_with_an_address_waiting_does_not_help() -> None:
    assert issubclass(InvalidBrokerUrl, Misconfigured)
    assert issubclass(TlsFailed, Misconfigured)


def test_the_name_of_a_file_is_read_alike_in_both_addresses() -> None:
    query = "tls_ca=/tmp/a%20b%2B%26%23%25/ca.pem"
    meant = Path("/tmp/a b+&#%/ca.pem")
    assert BrokerAddress(url=f"amqps://host/?{query}").tls.ca == meant
    assert tls_of(database_url(f"mysql://me@host/bso?{query}")).ca == meant
