"""Jobs, trials and events in SQL databases."""

from bso.storage.opening import open_store
from bso.storage.store import SqlStore

__all__ = ["SqlStore", "open_store"]
