"""How many commands one transaction may decide, and how many transactions there may be at once."""

from __future__ import annotations

import asyncio

from bso.service.errors import DecidingTimedOut, StoreTimedOut

MOST_BATCHES = 8
"""Under way at once, each with a connection to the database."""
_TIMEOUT_COUNTS_S = 30.0


class BatchLimit:
    """Half as many after each transaction that timed out, one more after each that succeeded, ``most`` at most."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = most
        self._timeout: StoreTimedOut | DecidingTimedOut | None = None
        self._timeout_at_s = 0.0

    @property
    def obstacle(self) -> str | None:
        """Why a transaction timed out a short while ago; None: none did, or the store answers again."""
        is_old = asyncio.get_running_loop().time() - self._timeout_at_s > _TIMEOUT_COUNTS_S
        return None if is_old or self._timeout is None else str(self._timeout)

    def succeeded(self) -> None:
        """A transaction ended in time."""
        self.now = min(self.most, self.now + 1)
        if isinstance(self._timeout, StoreTimedOut):
            self._timeout = None

    def failed(self, error: Exception) -> None:
        """A transaction failed; only if it timed out is that due to its size."""
        if isinstance(error, StoreTimedOut | DecidingTimedOut):
            self.now = max(1, self.now // 2)
            self._timeout = error
            self._timeout_at_s = asyncio.get_running_loop().time()
