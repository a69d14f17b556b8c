"""Opening a store by its address."""

from __future__ import annotations

from bso.storage.connections import ConnectionLimits, create_engine
from bso.storage.filesystems import require_local
from bso.storage.store import SqlStore
from bso.storage.urls import database_url, sqlite_path

_DEFAULT_LIMITS = ConnectionLimits()


def open_store(url: str, *, limits: ConnectionLimits = _DEFAULT_LIMITS, has_outbox: bool = True) -> SqlStore:
    """A store at an address such as ``mysql://user:password@host/bso``. Connects to nothing yet.

    Raises Misconfigured for an address that cannot work. The schema is made and upgraded by bso_migrations.
    """
    address = database_url(url)
    file = sqlite_path(address) if address.get_backend_name() == "sqlite" else None
    if file is not None:
        require_local(file)
    return SqlStore(create_engine(address, limits), has_outbox=has_outbox, file=file)
