"""A broker that is reached by TLS."""

from dataclasses import dataclass
from datetime import timedelta

from tests.servers.certificates import Authority
from tools.private_servers import RabbitMQ


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsBroker:
    """A virtual host of a private RabbitMQ, which listens without TLS, and with it as localhost."""

    server: RabbitMQ
    authority: Authority
    plain_url: str

    @property
    def url(self) -> str:
        """With TLS, verified by the file of the authority."""
        return self.url_with(tls_ca=self.authority.ca)

    def url_with(self, *, host: str = "localhost", **options: object) -> str:
        """With TLS, and no other options than these."""
        return self.server.secured(self.plain_url, host=host, **options)

    @property
    def tls_at_the_plain_port(self) -> str:
        """An address that is wrong: amqps://, and the port without TLS."""
        return self.plain_url.replace("amqp://", "amqps://")

    @property
    def no_tls_at_the_tls_port(self) -> str:
        """An address that is wrong: amqp://, and the port for TLS."""
        return self.plain_url.replace(str(self.server.port), str(self.server.tls_port))

    def renew(self, *, expired: timedelta | None = None) -> None:
        """Let connections from now on show another certificate, of the authority as it is now."""
        self.authority.issue("server", "localhost", expired=expired)
        self.server.read_certificates()

    def close_connections(self) -> None:
        """Close those of the administrator's login, from the server's side."""
        self.server.management.close_connections(self.plain_url)
