"""What can be wrong with the installation of a worker or a gateway."""

from __future__ import annotations

from typing import ClassVar

from bso.domain.errors import Misconfigured


class InvalidSettings(Misconfigured):
    """A setting is missing or cannot be understood; the message names each with its variable."""

    exit_code: ClassVar[int] = 2


class CannotListen(Misconfigured):
    """No server can listen where it should: another program does, or its certificate is none."""
