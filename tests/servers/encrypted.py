"""Database servers with certificates, and logins that they let in by different ways."""

import shutil
from pathlib import Path
from typing import Literal

import sqlalchemy as sa

from tests.servers.certificates import Authority, Certificate
from tools.private_servers import MariaDB, PostgreSQL

Option = str | Path | None
Login = Literal["anyhow", "secured", "certified"]
PASSWORD = "not-on-the-wire"
_MARIADB = {"anyhow": "", "secured": "REQUIRE SSL", "certified": "REQUIRE X509"}
_POSTGRESQL = """\
local   all all                     trust
host    all anyhow    127.0.0.1/32  scram-sha-256
hostssl all secured   127.0.0.1/32  scram-sha-256
hostssl all certified 127.0.0.1/32  scram-sha-256 clientcert=verify-ca
"""


class EncryptedDatabase:
    """A private server with a certificate for 127.0.0.1, issued by an ``authority`` of its own.

    It lets the login ``anyhow`` in with and without TLS, ``secured`` with TLS only, and ``certified`` only with TLS
    and a certificate that the authority has issued.
    """

    def __init__(self, server: MariaDB | PostgreSQL, folder: Path) -> None:
        self.server = server
        self.authority = Authority(folder)
        self.certificate = self.authority.issue("server", "127.0.0.1")
        self.show(self.certificate)

    def show(self, certificate: Certificate) -> None:
        """Identify itself with another certificate from now on."""
        self.server.show_certificate(certificate.cert, certificate.key, ca=self.authority.ca)

    def start(self) -> None:
        """Start the server, with its logins."""
        if isinstance(self.server, PostgreSQL):
            self.server.admit(_POSTGRESQL)
        self.server.start()
        for login, requirement in _MARIADB.items():
            if isinstance(self.server, PostgreSQL):
                self.server.execute(f"CREATE ROLE {login} LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
            else:
                self.server.execute(f"CREATE USER {login} IDENTIFIED BY '{PASSWORD}' {requirement}")
                self.server.execute(f"GRANT ALL ON *.* TO {login}")

    def create_database(self, login: Login = "secured", *, host: str = "127.0.0.1", **options: Option) -> str:
        """The URL of a new, empty database, with TLS and the authority trusted unless the options say otherwise."""
        return self.url(self.server.create_database(), login, host=host, **options)

    def url(self, database: str, login: Login, *, host: str = "127.0.0.1", **options: Option) -> str:
        """The URL of a database of this server, by another login, with other options; ``tls_ca=None`` leaves it out."""
        query: dict[str, Option] = {"tls": "verify", "tls_ca": self.authority.ca, **options}
        given = {name: str(value) for name, value in query.items() if value is not None}
        url = sa.make_url(database).set(username=login, password=PASSWORD, host=host, query=given)
        return url.render_as_string(hide_password=False)


def copied(certificate: Certificate, folder: Path) -> Certificate:
    """The same certificate in files of one's own, to be renewed."""
    return Certificate(
        cert=Path(shutil.copy(certificate.cert, folder / "own.pem")),
        key=Path(shutil.copy(certificate.key, folder / "own.key")),
    )
