"""Databases with the logins that the page of secrets makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from tests.integration.shipped import statements_of
from tools.private_servers import MariaDB, PostgreSQL, new_password

LOGINS = ("bso_migrate", "bso_worker")


@dataclass(frozen=True, kw_only=True)
class Database:
    """A new database, its logins by the page's statements, and a way to run more statements of the page.

    ``password`` is that of all its logins, whose names end with that of the database: a server has many databases.
    """

    server: MariaDB | PostgreSQL
    admin_url: str
    password: str

    @classmethod
    @contextmanager
    def made(cls, server: MariaDB | PostgreSQL) -> Iterator[Database]:
        """One on a server that runs; its logins are removed afterwards."""
        database = cls(server=server, admin_url=server.create_database(), password=new_password())
        database.execute(statements_of(f"Logins of {'MySQL or MariaDB' if database.is_mysql else 'PostgreSQL'}"))
        yield database
        if database.is_mysql:
            database.execute("".join(f"DROP USER IF EXISTS {login};" for login in LOGINS))

    @property
    def is_mysql(self) -> bool:
        """Whether it speaks as MySQL does."""
        return isinstance(self.server, MariaDB)

    @property
    def name(self) -> str:
        """Its name."""
        return self.admin_url.rpartition("/")[2]

    def url(self, login: str) -> str:
        """The URL of a login of the page."""
        return url_of(self.admin_url, self._own(login), self.password)

    def execute(self, sql: str) -> str:
        """Run statements of the page in this database, as its administrator."""
        own = sql.replace("bso.*", f"{self.name}.*")
        for word in ("PASSWORD-OF-MIGRATE", "PASSWORD-OF-WORKER"):
            own = own.replace(word, self.password)
        for login in LOGINS:
            own = own.replace(login, self._own(login))
        entering = f"USE {self.name};" if self.is_mysql else f"\\connect {self.name}"
        return self.server.execute(f"{entering}\n{own}")

    def _own(self, login: str) -> str:
        for known in LOGINS:
            login = login.replace(known, f"{known}_{self.name}")
        return login


def url_of(url: str, login: str, password: str) -> str:
    """The URL of a database for another login."""
    return sa.make_url(url).set(username=login, password=password).render_as_string(hide_password=False)
