"""One root of all errors, and three families that say what the caller has to do."""

from __future__ import annotations

from typing import ClassVar

from bso.domain.foreign_text import shown


class BsoError(Exception):
    """The root of every error that bso raises on purpose. Its text is one line, with all hidden characters shown."""

    def __str__(self) -> str:
        return shown(super().__str__())


class Retryable(BsoError):
    """The same request may succeed later: wait and try again. A message is requeued."""

    needs_operator: ClassVar[bool] = False
    """Whether it succeeds only once somebody has upgraded, installed or repaired something."""


class Rejected(BsoError):
    """The request itself is wrong and will never succeed: correct it. A message is dead-lettered."""


class Misconfigured(BsoError):
    """The installation is wrong: an operator has to change something before anything can succeed."""


class WrongSetting(Misconfigured):
    """An option, a setting or an address is wrong as it stands: nothing has been tried with it."""
