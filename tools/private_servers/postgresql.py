"""A PostgreSQL of one's own."""

import os
import pwd
import shutil
import signal
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote
from uuid import uuid4

from tools.private_servers.server import PrivateServer, ServerFailed, program


class PostgreSQL(PrivateServer):
    """A private PostgreSQL server, login postgres with ``password``; ready in about two seconds.

    PostgreSQL refuses to run as root; started by root it runs as the user postgres, or else nobody.
    """

    name: ClassVar[str] = "postgresql"

    def __init__(self) -> None:
        super().__init__()
        [self.port] = self.ports
        self.settings: dict[str, str] = {}
        """Further settings of the server's process."""

    @property
    def url(self) -> str:
        return f"postgresql+asyncpg://postgres:{quote(self.password, safe='')}@127.0.0.1:{self.port}/postgres"

    def create_database(self) -> str:
        """Create a database with a name never used before, and return the URL of it."""
        name = f"bso_{uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url.removesuffix("postgres") + name

    def execute(self, sql: str) -> str:
        """Run a statement as postgres; what it selects comes back as lines of values separated by |."""
        return self._run(
            [_program("psql"), "-X", "-A", "-t", "-q", "-h", self.folder, "-p", str(self.port), *_LOGIN], typed=sql
        )

    def show_certificate(self, cert: Path, key: Path, *, ca: Path) -> None:
        """Let connections be encrypted from the next start on; where they can be already, with these files from now on.

        ``ca`` has issued the certificates of clients.
        """
        for name, path in {"cert": cert, "key": key, "ca": ca}.items():
            kept = self._kept(f"{name}.pem", path.read_bytes())
            self.settings[f"ssl_{name}_file"] = str(kept)
        self.settings["ssl"] = "on"
        if self.is_running:
            self.execute("SELECT pg_reload_conf()")

    def admit(self, rules: str) -> None:
        """Let connections in by these lines of a pg_hba.conf, from the next start on."""
        self.settings["hba_file"] = str(self._kept("hba.conf", rules.encode()))

    def _kept(self, name: str, content: bytes) -> Path:
        """A file in the server's folder that is the server's own: else it refuses a private key."""
        path = self.folder / name
        path.write_bytes(content)
        path.chmod(0o600)
        if os.geteuid() == 0:
            shutil.chown(path, _account().pw_uid, _account().pw_gid)
        return path

    def _launch(self) -> None:
        data = self.folder / "data"
        if not data.exists():
            password = self.folder / "password"
            password.touch(mode=0o600)
            password.write_text(self.password, encoding="utf-8")
            if os.geteuid() == 0:
                for path in (self.folder, password):
                    shutil.chown(path, _account().pw_uid, _account().pw_gid)
            login = ["-U", "postgres", "--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={password}"]
            self._run([*_as_account(), _program("initdb"), "-D", data, "-N", *login, *_ENCODING])
        options: list[str | Path] = [
            "-p",
            str(self.port),
            "-k",
            self.folder,
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "max_connections=300",
        ]
        for name, value in self.settings.items():
            options += ["-c", f"{name}={value}"]
        self._spawn(self.name, [*_as_account(), _program("postgres"), "-D", data, *options])

    def answers(self) -> bool:
        try:
            self._run([_program("pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)])
        except ServerFailed:
            return False
        return True

    def _stop_signal(self) -> signal.Signals:
        return signal.SIGINT  # fast shutdown: SIGTERM would wait until every client has left


_LOGIN = ["-U", "postgres", "-d", "postgres", "-v", "ON_ERROR_STOP=1"]
_ENCODING = ["-E", "UTF8", "--locale=C"]


def _program(name: str) -> Path:
    return program(name, f"/usr/lib/postgresql/*/bin/{name}", package="postgresql")


def _account() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _as_account() -> list[str]:
    """The command that drops root's rights, if there are any to drop."""
    if os.geteuid() != 0:
        return []
    account = _account()
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
