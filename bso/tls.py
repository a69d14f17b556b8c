"""TLS with a server: the options that the addresses of databases and of brokers have in common, and what they mean.

    tls=verify      encrypted; the server's certificate must be valid, and be issued for the host of the address
    tls=verify-ca   encrypted; the certificate must be valid, for whatever host
    tls=off         not encrypted
    tls_ca=FILE     the authorities that are trusted, in place of those of this machine (PEM)
    tls_cert=FILE   the certificate that shows the server who we are, and those between it and its authority (PEM)
    tls_key=FILE    its private key, if it is not in the same file (PEM)

Without ``tls`` it is ``verify``, but on this machine, where nobody else can read the connection, ``off``.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bso.domain.errors import Misconfigured

OPTIONS = ("tls", "tls_ca", "tls_cert", "tls_key")
"""The names of all options of an address that say how it is encrypted."""
VERIFY, VERIFY_CA, OFF = MODES = ("verify", "verify-ca", "off")


class TlsFailed(Misconfigured):
    """The two sides do not agree on TLS or on a certificate, or the options for it are wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """How a connection is encrypted, and what the certificate of the server must show; ``mode`` is one of MODES."""

    mode: str
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @property
    def is_on(self) -> bool:
        """Whether the connection is encrypted."""
        return self.mode != OFF


def tls_options(query: Mapping[str, str], *, host: str | None, mode: str | None = None) -> TlsOptions:
    """The options in the query of an address; ``mode`` is what it is without ``tls``. Raises TlsFailed.

    Options that are not for TLS are left alone.
    """
    if empty := [name for name in OPTIONS if query.get(name) == ""]:
        raise TlsFailed(f"{', '.join(empty)} in the address has no value: a variable that is not set?")
    files = {name: query[name] for name in OPTIONS[1:] if name in query}
    chosen = query.get("tls") or mode or (OFF if is_loopback(host) and not files else VERIFY)
    if chosen not in MODES:
        raise TlsFailed(f"tls={chosen} is not a way to encrypt a connection; expected one of {', '.join(MODES)}")
    if chosen == OFF and files:
        raise TlsFailed(f"{', '.join(files)} in the address needs TLS; take out tls=off, or these files")
    if "tls_key" in files and "tls_cert" not in files:
        raise TlsFailed("tls_key in the address is the key of a certificate: add tls_cert=FILE")
    return TlsOptions(mode=chosen, **{name.removeprefix("tls_"): _path(name, text) for name, text in files.items()})


def tls_context(options: TlsOptions) -> ssl.SSLContext:
    """A context for one connection. It reads the files, which may have been renewed. Raises TlsFailed."""
    assert options.is_on
    for name, path in (("tls_ca", options.ca), ("tls_cert", options.cert), ("tls_key", options.key)):
        _require_readable(name, path)
    try:
        context = ssl.create_default_context(cafile=None if options.ca is None else str(options.ca))
    except (ssl.SSLError, OSError) as error:
        raise TlsFailed(f"tls_ca={options.ca} holds no certificate that can be read (PEM): {error}") from error
    context.check_hostname = options.mode == VERIFY
    if options.cert is not None:
        try:
            # Without a callable for the password, OpenSSL would ask for it on the terminal, and wait.
            context.load_cert_chain(options.cert, options.key, password=lambda: "")
        except (ssl.SSLError, OSError, ValueError) as error:
            raise TlsFailed(
                f"tls_cert={options.cert} and its key do not go together, are no PEM, or the key has a password "
                f"(expected one without): {error}"
            ) from error
    return context


def is_loopback(host: str | None) -> bool:
    """Whether a server is on this machine: it has no host but a socket, is called localhost, or has such an address."""
    if not host or host.lower() == "localhost" or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def why_tls_failed(error: BaseException | None) -> str | None:
    """What was wrong with TLS, in words, with the remedy; None: the error is about something else.

    Whatever an error was raised from, or while handling, is looked at, too.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        match error:
            case TlsFailed():
                return str(error)
            case ssl.SSLCertVerificationError():
                return f"{error.verify_message}; {_remedy(error)}"
            case ssl.SSLEOFError():
                return None  # the connection has ended, which says nothing about TLS
            case ssl.SSLError():
                return _end_of_handshake(error.reason or str(error))
            case _:
                error = error.__cause__ or error.__context__
    return None


def encryption_of(version: str | None, options: TlsOptions) -> str:
    """How a connection is encrypted with a version of TLS, and what was verified, in words; None: it is not."""
    if version is None:
        return "not encrypted"
    return f"encrypted ({version}), certificate verified" + ("" if options.mode == VERIFY else ", for whatever host")


def _end_of_handshake(reason: str) -> str:
    """What OpenSSL says where the two sides do not agree; an ALERT is what the server has said."""
    if "ALERT" not in reason:
        return f"{reason}; does the server speak TLS on this port?"
    if "PROTOCOL_VERSION" in reason:
        return f"the server speaks no TLS of version 1.2 or newer ({reason}): its operator has to allow that"
    if any(word in reason for word in ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE")):
        return (
            f"the server asks for a certificate, and does not accept the one that it got, or none ({reason}): name one "
            "with tls_cert=FILE that an authority which the server knows has issued, and that has not expired"
            f"{'; or the two have no cipher in common' if 'HANDSHAKE' in reason else ''}"
        )
    return f"the server ends the handshake ({reason}): its log says why"


def _remedy(error: ssl.SSLCertVerificationError) -> str:
    """What to do about a certificate; the codes are OpenSSL's (x509_vfy.h)."""
    match error.verify_code:
        case 10:
            return "the server's certificate, or its authority's, has expired: its operator has to renew it"
        case 18 | 19 | 20 | 21:
            return (
                "this machine does not know the authority that issued it: tls_ca=FILE has to name the certificate of "
                "that authority (it names another one, or none)"
            )
        case 62 | 64:
            return "the address must name the server as its certificate does (tls=verify-ca accepts another name)"
        case code if 80 <= code <= 94:
            return (
                "Python 3.13 and newer take no certificate, and no authority's, that is not made by RFC 5280: have it "
                "issued again (docs/encryption.md shows how)"
            )
        case _:
            return "see the certificate of the server (openssl s_client -connect HOST:PORT)"


def _path(name: str, text: str) -> Path:
    if "\0" in text:
        raise TlsFailed(f"{name} in the address names no file: it holds a zero byte")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise TlsFailed(f"{name}={text} in the address names no file: nobody knows the home folder: {error}") from error


def _require_readable(name: str, path: Path | None) -> None:
    if path is None:
        return
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait for ever, and a second time find nothing
            raise TlsFailed(f"{name}={path} in the address is no file; expected one (PEM)")
        path.open("rb").close()
    except OSError as error:
        raise TlsFailed(f"the file of {name}={path} in the address cannot be read: {error.strerror}") from error
