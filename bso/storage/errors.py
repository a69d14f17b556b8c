"""What can be wrong with a database or its address."""

from __future__ import annotations

from bso.domain.errors import Misconfigured, WrongSetting


class BadDatabaseUrl(WrongSetting):
    """The address of the database cannot be used; the message says what it should look like."""


class NetworkFileSystem(Misconfigured):
    """An SQLite file may not lie on a network file system: locks do not hold there and the file gets corrupted."""
