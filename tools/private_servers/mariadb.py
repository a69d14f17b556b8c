"""A MariaDB of one's own."""

import os
import shutil
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote
from uuid import uuid4

from tools.private_servers.server import PrivateServer, greets, new_password, program


class MariaDB(PrivateServer):
    """A private MariaDB server, login root with ``password``; ready in about a second, in 0.3 s after kill().

    `url` has no database; a database per test comes from create_database().
    """

    name: ClassVar[str] = "mariadb"

    def __init__(self) -> None:
        super().__init__()
        [self.port] = self.ports
        self.environ: dict[str, str] = {}
        """Further variables of the server's process."""
        self.options: list[str] = []
        """Further options of the server's process."""

    @property
    def url(self) -> str:
        return f"mysql+asyncmy://root:{quote(self.password, safe='')}@127.0.0.1:{self.port}/"

    def create_database(self) -> str:
        """Create a database with a name never used before, and return the URL of it."""
        name = f"bso_{uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return self.url + name

    def create_login(self, database_url: str) -> str:
        """Create a login never used before that owns this database and has no other power; return its URL of it."""
        name, login, password = database_url.rpartition("/")[2], f"login_{uuid4().hex[:12]}", new_password()
        self.execute(f"CREATE USER {login} IDENTIFIED BY '{password}'; GRANT ALL ON {name}.* TO {login}")
        return f"mysql+asyncmy://{login}:{quote(password, safe='')}@{database_url.rpartition('@')[2]}"

    def execute(self, sql: str) -> str:
        """Run statements as root; what they select comes back as lines of tab-separated values."""
        client = program("mariadb", package="mariadb-client")
        return self._run([client, "--no-defaults", "-uroot", f"--socket={self.socket}", "-N", "-B"], typed=sql)

    def commits(self) -> int:
        """The server's counter of COMMIT statements (Com_commit), over all databases."""
        return int(self.execute("SHOW GLOBAL STATUS LIKE 'Com_commit'").split()[1])

    def dump(self, database: str) -> str:
        """All tables of a database as they are at one moment, as SQL."""
        program_ = program("mariadb-dump", package="mariadb-client")
        return self._run(
            [program_, "--no-defaults", "-uroot", f"--socket={self.socket}", "--single-transaction", database]
        )

    def load(self, database: str, dump: str) -> None:
        """Replace the tables by those of a dump."""
        script = self.folder / f"{database}.sql"
        script.write_text(dump, encoding="utf-8")
        self.execute(f"USE {database}\nSOURCE {script}")

    def show_certificate(self, cert: Path, key: Path, *, ca: Path) -> None:
        """Let connections be encrypted from the next start on; where they can be already, with these files from now on.

        ``ca`` has issued the certificates of clients.
        """
        files = {"cert": cert, "key": key, "ca": ca}
        for name, path in files.items():
            shutil.copy(path, self.folder / f"{name}.pem")
        self.options = [f"--ssl-{name}={self.folder / name}.pem" for name in files]
        if self.is_running:
            self.execute("FLUSH SSL")

    @property
    def socket(self) -> Path:
        """Where clients of this machine connect as well."""
        return self.folder / "mariadb.sock"

    def _launch(self) -> None:
        server = program("mariadbd", package="mariadb-server")
        data = self.folder / "data"
        user = ["--user=root"] if os.geteuid() == 0 else []
        temporary = self.folder / "tmp"  # of its own: a MariaDB that starts removes the temporary tables of others
        temporary.mkdir(exist_ok=True)
        if not data.exists():
            install = program("mariadb-install-db", package="mariadb-server")
            options = ["--auth-root-authentication-method=normal", "--skip-test-db", f"--datadir={data}"]
            self._run([install, "--no-defaults", *user, *options, f"--tmpdir={temporary}"])
        settings = self.folder / "init.sql"
        settings.touch(mode=0o600)
        settings.write_text(f"SET PASSWORD FOR 'root'@'127.0.0.1' = PASSWORD('{self.password}');\n", encoding="utf-8")
        self._spawn(
            self.name,
            [
                server,
                "--no-defaults",
                *user,
                f"--datadir={data}",
                f"--tmpdir={temporary}",
                f"--port={self.port}",
                "--bind-address=127.0.0.1",
                f"--socket={self.socket}",
                f"--pid-file={self.folder / 'mariadb.pid'}",
                "--skip-name-resolve",
                f"--init-file={settings}",
                "--max-connections=600",
                *self.options,
            ],
            env={**os.environ, **self.environ},
        )

    def answers(self) -> bool:
        return greets(self.port)
