"""The options in the address of a broker, behind its question mark."""

from __future__ import annotations

from yarl import URL

from bso.tls import OFF, OPTIONS, VERIFY, TlsOptions, tls_options
from bso_broker.errors import InvalidBrokerUrl
from bso_broker.topology import CLASSIC, QUORUM

PASSED_ON = ("auth", "heartbeat", "name")
"""Those that aiormq reads; the others are for TLS, and for those who declare queues."""
COMMAND_QUEUE_TYPE = "command_queue"
_QUEUE_TYPES = (QUORUM, CLASSIC)
_WAYS_TO_LOG_IN = ("plain", "external")
_LONGEST_HEARTBEAT_S = 65534  # what aiormq takes


def check_options(url: URL) -> None:
    """Raise InvalidBrokerUrl or TlsFailed where an option is wrong. No value is shown: it may be a secret."""
    for name in url.query:
        if name not in (*PASSED_ON, COMMAND_QUEUE_TYPE, *OPTIONS):
            shown = f" {name!r}" if name.isascii() and name.isidentifier() else ""  # else the rest of a password
            known = ", ".join((*PASSED_ON, COMMAND_QUEUE_TYPE, *OPTIONS))
            raise InvalidBrokerUrl(f"the broker URL has an unknown option{shown}; expected some of {known}")
        if len(url.query.getall(name)) > 1:
            raise InvalidBrokerUrl(f"the broker URL has the option {name} more than once: expected one")
    _check_tls(url)
    _check_heartbeat(url)
    _check_way_to_log_in(url)
    if command_queue_type(url) not in _QUEUE_TYPES:
        raise InvalidBrokerUrl(f"{COMMAND_QUEUE_TYPE} in the broker URL is one of {', '.join(_QUEUE_TYPES)}")


def tls_of(url: URL) -> TlsOptions:
    """How connections are encrypted: amqps:// says that they are, also to this machine. Raises TlsFailed."""
    if url.scheme == "amqp":
        return TlsOptions(mode=OFF)
    return tls_options(url.query, host=url.host, mode=VERIFY)


def command_queue_type(url: URL) -> str:
    """The type of the queue from which workers take commands."""
    return url.query.get(COMMAND_QUEUE_TYPE, QUORUM)


def logs_in_by_certificate(url: URL) -> bool:
    """Whether the broker reads the login from the certificate, in place of a password."""
    return _way_to_log_in(url) == "external"


def _check_tls(url: URL) -> None:
    given = ", ".join(name for name in url.query if name in OPTIONS)
    if url.scheme == "amqp" and given:
        raise InvalidBrokerUrl(
            f"the broker URL has {given}, which is for TLS, and begins with amqp://, which is without: write amqps://, "
            "and the broker's port for TLS (5671)"
        )
    if url.scheme == "amqps" and not tls_of(url).is_on:
        raise InvalidBrokerUrl("the broker URL begins with amqps://, which is with TLS, and has tls=off: take one out")


def _check_heartbeat(url: URL) -> None:
    text = url.query.get("heartbeat", "0")
    if not (text.isascii() and text.isdecimal()) or int(text) > _LONGEST_HEARTBEAT_S:
        raise InvalidBrokerUrl(
            f"heartbeat in the broker URL is a whole number of seconds, from 0 (none) to {_LONGEST_HEARTBEAT_S}"
        )


def _check_way_to_log_in(url: URL) -> None:
    if _way_to_log_in(url) not in _WAYS_TO_LOG_IN:
        raise InvalidBrokerUrl(f"auth in the broker URL is one of {', '.join(_WAYS_TO_LOG_IN)}")
    if logs_in_by_certificate(url) and not (url.user and url.query.get("tls_cert")):
        raise InvalidBrokerUrl(
            "auth=external in the broker URL logs in by a certificate: expected amqps://LOGIN@host/virtual-host with "
            "tls_cert=FILE, LOGIN being the name that the broker reads from that certificate"
        )


def _way_to_log_in(url: URL) -> str:
    return url.query.get("auth", "plain").lower()
