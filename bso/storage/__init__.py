"""Jobs, trials and events in SQL databases."""

from bso.storage.store import SqlStore, open_store

__all__ = ["SqlStore", "open_store"]
