"""Several processes that train together: one of them talks to the optimizer, and all receive the same."""

from bso_client.distributed.ranks import Alone, Ranks

__all__ = ["Alone", "Ranks"]
