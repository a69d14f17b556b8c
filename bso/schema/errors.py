"""What can be wrong with a message."""

from __future__ import annotations

from bso.domain.errors import Rejected, Retryable


class MalformedMessage(Rejected):
    """The bytes are not a message of ours: no JSON, a missing or mistyped field, or an unknown type."""


class UnsupportedSchema(Rejected):
    """The message has another major version of the schema than this program."""


class StateTooNew(Retryable):
    """A stored state was written by a newer release; this one has to be upgraded and can then go on."""

    needs_operator = True
