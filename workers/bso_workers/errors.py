"""What can be wrong with the installation of a worker or a gateway."""

from __future__ import annotations

from bso.domain.errors import Misconfigured, WrongSetting


class InvalidSettings(WrongSetting):
    """A setting is missing or cannot be understood; the message names each with its variable."""


class CannotListen(Misconfigured):
    """No server can listen where it should: another program does, or its certificate is none."""
