"""Errors of the gateway."""

from __future__ import annotations

from bso.domain.errors import Misconfigured


class InvalidSettings(Misconfigured):
    """A setting of the gateway is missing or not acceptable; the text names each."""


class CannotListen(Misconfigured):
    """The gateway cannot listen where it should."""
