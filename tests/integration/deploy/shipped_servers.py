"""Private servers that read the files which deploy ships, with the secrets that make-secrets has written."""

import configparser
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit, urlunsplit

from typing_extensions import override

from tools.private_servers import Management, MariaDB, RabbitMQ
from tools.private_servers.ports import ClaimedPorts

DEPLOY = Path(__file__).parents[3] / "deploy"


def make_secrets(folder: Path, *options: str) -> Path:
    """Run the script; the folder."""
    subprocess.run([sys.executable, DEPLOY / "make-secrets", *options, folder], check=True, capture_output=True)
    return folder


def address(secrets: Path, name: str, *, port: int, scheme: str | None = None) -> str:
    """An address that make-secrets has written, at a port of this machine."""
    parts = urlsplit((secrets / name).read_text(encoding="utf-8").strip())
    login = f"{parts.username}:{parts.password}@127.0.0.1:{port}"
    return urlunsplit(parts._replace(netloc=login, query="", scheme=scheme or parts.scheme))


class ShippedRabbitMQ(RabbitMQ):
    """A private node that reads deploy's rabbitmq.conf and definitions, and the certificate of a folder of secrets."""

    def __init__(self, secrets: Path) -> None:
        super().__init__()
        self.secrets = secrets
        self._encrypted = ClaimedPorts(3)
        self.amqps_port, self.https_port, self.metrics_port = self._encrypted.numbers
        operator = urlsplit((secrets / "operator_amqp_url").read_text().strip())
        management_url = f"http://{operator.username}:{operator.password}@127.0.0.1:{self.management_port}"
        self.management = Management(management_url, self.login_url("operator"))

    def login_url(self, name: str) -> str:
        """The address of a login without TLS."""
        return address(self.secrets, f"{name}_amqp_url", port=self.port, scheme="amqp")

    @override
    def close(self) -> None:
        super().close()
        self._encrypted.release()

    @override
    def answers(self) -> bool:
        return super().answers() and _listens(self.amqps_port)

    @override
    def write_configuration(self) -> None:
        super().write_configuration()
        definitions = self.folder / "definitions.d"
        definitions.mkdir(exist_ok=True)
        shutil.copy(DEPLOY / "rabbitmq/topology.json", definitions / "10-topology.json")
        shutil.copy(self.secrets / "rabbitmq_logins.json", definitions / "20-logins.json")
        with (self.folder / "rabbitmq.conf").open("a") as file:
            file.write(self.shipped_settings())
        (self.folder / "enabled_plugins").write_text("[rabbitmq_management, rabbitmq_prometheus].\n")  # as in the image

    def shipped_settings(self) -> str:
        """Those of deploy, with paths and ports of this node, and without what a test's machine need not have."""
        settings = (DEPLOY / "rabbitmq/rabbitmq.conf").read_text()
        for shipped, ours in {
            "/etc/rabbitmq/definitions.d": str(self.folder / "definitions.d"),
            "/run/trusted": str(self.secrets / "trusted"),
            "/run/tls": str(self.secrets / "rabbitmq_tls"),
            "listeners.ssl.default = 5671": f"listeners.ssl.default = 127.0.0.1:{self.amqps_port}",
            "management.ssl.port = 15671": f"management.ssl.port = {self.https_port}\nmanagement.ssl.ip = 127.0.0.1",
            "prometheus.ssl.port = 15691": f"prometheus.ssl.port = {self.metrics_port}\nprometheus.ssl.ip = 127.0.0.1",
            "disk_free_limit.absolute = 2GB": "",
            "log.console = true": "",
        }.items():
            assert shipped in settings
            settings = settings.replace(shipped, ours)
        return settings


class AlsoPlainRabbitMQ(ShippedRabbitMQ):
    """The same, for what has nothing to do with TLS: it also listens without."""

    @override
    def answers(self) -> bool:
        return super().answers() and _listens(self.port)

    @override
    def shipped_settings(self) -> str:
        return super().shipped_settings().replace("listeners.tcp = none", "")


class ShippedMariaDB(MariaDB):
    """A private server that reads deploy's bso.cnf, and the certificate of a folder of secrets."""

    OF_MYSQL: ClassVar = ("innodb_redo_log_capacity",)
    """Settings that MariaDB does not know."""

    def __init__(self, secrets: Path) -> None:
        super().__init__()
        shipped = configparser.ConfigParser()
        shipped.read(DEPLOY / "mysql/bso.cnf")
        settings = {name: value.strip("'") for name, value in shipped["mysqld"].items() if name not in self.OF_MYSQL}
        settings |= {"innodb_buffer_pool_size": "64M"}
        self.options = [f"--{name.replace('_', '-')}={_placed(value, secrets)}" for name, value in settings.items()]


def _placed(path: str, secrets: Path) -> str:
    return path.replace("/run/tls", str(secrets / "mysql_tls")).replace("/run/trusted", str(secrets / "trusted"))


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
