"""What can be wrong with a worker's installation."""

from __future__ import annotations

from bso.domain.errors import Misconfigured


class InvalidSettings(Misconfigured):
    """A setting is missing or cannot be understood; the message names each with its variable."""


class PortTaken(Misconfigured):
    """Another program listens where health and metrics should be served."""
