"""What can go wrong while a schema is upgraded."""

from __future__ import annotations

from bso.domain.errors import Retryable


class DatabaseStillAway(Retryable):
    """The database did not answer until the deadline."""


class UpgradeInProgress(Retryable):
    """Another process held the lock of the upgrade until the deadline."""
