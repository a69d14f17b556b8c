"""A RabbitMQ of one's own, with the management interface on."""

from __future__ import annotations

import json
import os
import shlex
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit
from uuid import uuid4

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from tools.private_servers.server import PrivateServer, ServerFailed, program


class Management:
    """The management interface (HTTP) of a RabbitMQ: virtual hosts, users, permissions, queues and connections.

    `url` is http://user:password@host:port, of an administrator; `amqp_url` is where its clients connect.
    """

    def __init__(self, url: str, amqp_url: str) -> None:
        parts = urlsplit(url)
        self._root = f"{parts.scheme}://{parts.hostname}:{parts.port}/api/"
        login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        self._headers = {
            "Authorization": "Basic " + b64encode(login.encode()).decode(),
            "Content-Type": "application/json",
        }
        self._administrator = unquote(parts.username or "guest")
        self._amqp_url = amqp_url

    def answers(self) -> bool:
        """Whether the server is up and its management interface with it."""
        try:
            self.request("GET", "overview")
        except (OSError, ServerFailed):
            return False
        return True

    def create_vhost(self) -> str:
        """Create a virtual host with a name never used before, and return the URL of it: nothing is in there yet."""
        vhost = f"bso-{uuid4().hex[:12]}"
        # A cluster whose nodes have just met may not have initialised it in time: then it is asked for once more.
        several = Retrying(
            reraise=True, retry=retry_if_exception_type(ServerFailed), stop=stop_after_attempt(3), wait=wait_fixed(1.0)
        )
        several(self.request, "PUT", f"vhosts/{vhost}")
        self.permit(self._administrator, self.url_of(vhost))
        return self.url_of(vhost)

    def delete_vhost(self, url: str) -> None:
        """Delete a virtual host, closing the connections to it and dropping all that is in it."""
        self.request("DELETE", f"vhosts/{_vhost(url)}")

    def add_user(self, url: str, name: str, password: str, *, configure: str, write: str, read: str) -> str:
        """Create or change a user, permit it these patterns in the URL's virtual host; its own URL is returned."""
        self.request("PUT", f"users/{quote(name, safe='')}", {"password": password, "tags": ""})
        self.permit(name, url, configure=configure, write=write, read=read)
        return self.url_of(unquote(_vhost(url)), name=name, password=password)

    def permit(self, name: str, url: str, *, configure: str = ".*", write: str = ".*", read: str = ".*") -> None:
        """Set what a user may configure, write and read in the URL's virtual host, as regular expressions."""
        body = {"configure": configure, "write": write, "read": read}
        self.request("PUT", f"permissions/{_vhost(url)}/{quote(name, safe='')}", body)

    def permit_topics(self, name: str, url: str, *, exchange: str, write: str, read: str) -> None:
        """Set the routing keys that a user may write to and read from a topic exchange, as regular expressions."""
        body = {"exchange": exchange, "write": write, "read": read}
        self.request("PUT", f"topic-permissions/{_vhost(url)}/{quote(name, safe='')}", body)

    def queues(self, url: str) -> list[dict[str, Any]]:
        """The queues of the URL's virtual host; numbers of messages in it may lag by some seconds."""
        found: list[dict[str, Any]] = self.request("GET", f"queues/{_vhost(url)}")
        return found

    def close_connections(self, url: str) -> int:
        """Close all connections of the URL's user, to any virtual host, from the server's side; how many they were."""
        path = f"connections/username/{urlsplit(url).username or 'guest'}"
        found: list[object] = self.request("GET", path)
        # 500 is answered where one of them closes by itself meanwhile.
        several = Retrying(
            reraise=True, retry=retry_if_exception_type(ServerFailed), stop=stop_after_attempt(5), wait=wait_fixed(0.2)
        )
        several(self.request, "DELETE", path)
        return len(found)

    def url_of(self, vhost: str, *, name: str | None = None, password: str = "") -> str:
        """The AMQP URL of a virtual host, for the given login or the administrator's."""
        parts = urlsplit(self._amqp_url)
        address = f"{parts.hostname}:{parts.port or 5672}"
        login = (
            parts.netloc.rpartition("@")[0] if name is None else f"{quote(name, safe='')}:{quote(password, safe='')}"
        )
        return urlunsplit((parts.scheme, f"{login}@{address}", "/" + quote(vhost, safe=""), parts.query, ""))

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Any request below /api/, body and answer being JSON; ServerFailed if it is refused."""
        data = None if body is None and method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self._root + path, data, self._headers, method=method)  # noqa: S310  its own URL
        try:
            with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                content = response.read()
        except urllib.error.HTTPError as error:
            with error:
                raise ServerFailed(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}") from error
        return json.loads(content) if content else None


class RabbitMQ(PrivateServer):
    """A private RabbitMQ node; ready in about 4 s, and again after kill().

    `url` is amqp://guest:PASSWORD@127.0.0.1:port/ ; a virtual host per test comes from create_vhost(), everything else
    from `management`. RabbitMQ 3.10 may break a quorum queue whose node is killed within a second of its declaration.
    """

    name: ClassVar[str] = "rabbitmq"
    port_count: ClassVar[int] = 5

    def __init__(
        self, *, leader: RabbitMQ | None = None, certificates: Path | None = None, asks_for_certificate: bool = False
    ) -> None:
        """``leader``: a node that runs when this one is started for the first time, and whose cluster it joins.

        ``certificates``: a folder with ca.pem, server.pem and server.key; then the node listens with TLS as well, and
        lets in who shows a certificate that ca.pem has issued: by password, or as the login that it is issued for.
        ``asks_for_certificate``: nobody gets in without one.
        """
        super().__init__()
        if leader is not None:
            self.password = leader.password
        self.port, self._distribution_port, self.epmd_port, management_port, self.tls_port = self.ports
        self._leader = leader
        self._certificates = certificates
        self._asks_for_certificate = asks_for_certificate
        self.management_url = f"http://guest:{quote(self.password, safe='')}@127.0.0.1:{management_port}"
        self.management = Management(self.management_url, self.url)
        self.management_port = management_port

    @property
    def url(self) -> str:
        return f"amqp://guest:{quote(self.password, safe='')}@127.0.0.1:{self.port}/"

    def create_vhost(self) -> str:
        """The URL of a new, empty virtual host."""
        return self.management.create_vhost()

    def secured(self, url: str, *, host: str = "localhost", **options: object) -> str:
        """A URL of this node, over TLS: amqps://, with these options of bso's."""
        parts = urlsplit(url)
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit(("amqps", f"{login}@{host}:{self.tls_port}", parts.path, urlencode(options), ""))

    def read_certificates(self) -> None:
        """Let connections from now on be made with what the folder of certificates holds now."""
        self.control("eval", "ssl:clear_pem_cache().")

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl with these arguments, which takes a second or two; what it prints."""
        return self.shell(shlex.join(["rabbitmqctl", "--node", self.node, *arguments]))

    def shell(self, line: str, *, typed: str = "") -> str:
        """Run a shell's line in which rabbitmqctl is that of this node; what it prints. ``typed`` is its input."""
        path = "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmqctl"
        client = program("rabbitmqctl", path, package="rabbitmq-server")
        environment = {**os.environ, **self._environment()}
        return self._run(
            ["sh", "-c", line], typed=typed, env={**environment, "PATH": f"{client.parent}:{environment['PATH']}"}
        )

    @property
    def node(self) -> str:
        """The name of the node."""
        return f"bso{self.port}@localhost"

    def _launch(self) -> None:
        epmd = program("epmd", package="rabbitmq-server")
        server = program(
            "rabbitmq-server", "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server", package="rabbitmq-server"
        )
        self.write_configuration()
        if self._leader is not None:  # nodes of a cluster find each other by one epmd, and trust each other by a cookie
            self.epmd_port = self._leader.epmd_port
            cookie = self.folder / ".erlang.cookie"
            cookie.write_text((self._leader.folder / ".erlang.cookie").read_text())
            cookie.chmod(0o400)
        if self._leader is None:  # in the foreground and as our child: a daemon started by the node would outlive it
            self._spawn("epmd", [epmd, "-port", str(self.epmd_port), "-address", "127.0.0.1"])
        self._spawn(self.name, [server, "-noinput"], env={**os.environ, **self._environment()})

    def write_configuration(self) -> None:
        """Write the files that the node reads when it starts."""
        peers = [] if self._leader is None else [self._leader.node, self.node]
        discovery = "".join(
            f"cluster_formation.classic_config.nodes.{number} = {name}\n" for number, name in enumerate(peers, start=1)
        )
        (self.folder / "rabbitmq.conf").write_text(
            f"{discovery}listeners.tcp.1 = 127.0.0.1:{self.port}\ndefault_pass = {self.password}\n"
            f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {self.management_port}\n"
            "log.console = false\nlog.file.level = warning\n"
            # Small machines: never refuse messages for want of disk or memory.
            "disk_free_limit.absolute = 50MB\nvm_memory_high_watermark.absolute = 2GB\n" + self._tls_configuration()
        )
        plugins = "rabbitmq_management" + (",rabbitmq_auth_mechanism_ssl" if self._certificates else "")
        (self.folder / "enabled_plugins").write_text(f"[{plugins}].\n")
        (self.folder / "env.conf").touch()

    def _tls_configuration(self) -> str:
        if self._certificates is None:
            return ""
        return (
            f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}\n"
            f"ssl_options.cacertfile = {self._certificates / 'ca.pem'}\n"
            f"ssl_options.certfile = {self._certificates / 'server.pem'}\n"
            f"ssl_options.keyfile = {self._certificates / 'server.key'}\n"
            "ssl_options.verify = verify_peer\n"
            f"ssl_options.fail_if_no_peer_cert = {str(self._asks_for_certificate).lower()}\n"
            "auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = EXTERNAL\nssl_cert_login_from = common_name\n"
        )

    def _environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(self.folder / "node.pid"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "env.conf"),
            # The script becomes the node instead of starting it as a grandchild.
            "RABBITMQ_ALLOW_INPUT": "1",
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def answers(self) -> bool:
        return self.management.answers()


def _vhost(url: str) -> str:
    """The name of the virtual host in an AMQP URL, still percent-encoded."""
    return urlsplit(url).path.removeprefix("/") or "%2F"
