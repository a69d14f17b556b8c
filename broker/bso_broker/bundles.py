"""Several messages in one, which costs sender, broker and receiver less than one message each.

A bundle has lines: an id, a space, and a message without line breaks, as compact JSON is. Its properties, but for the
message_id, are those of all its messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

BUNDLE = "application/x-bso-bundle"
"""The content_type of a bundle."""
MOST_PARTS = 32
"""With more, a bundle costs hardly less per message, and a worker that dies has more of them delivered again."""
_MOST_BYTES = 262_144
_ID = re.compile(rb"[!-~]{1,255}")  # printable ASCII without spaces, as long as a property may be
_END, _AFTER_ID = b"\n", b" "

Part = tuple[str, bytes]
"""An id and a message."""


class Bundle:
    """Messages that go out as one, up to a number and a size."""

    def __init__(self, first: Part) -> None:
        self.parts = [first]
        self._size = len(first[1])

    def add(self, part: Part) -> bool:
        """Add a message that may share one (``may_share``); False: there is no room for it."""
        size = self._size + len(part[1])
        if len(self.parts) == MOST_PARTS or size > _MOST_BYTES:
            return False
        self.parts.append(part)
        self._size = size
        return True


def may_share(part: Part) -> bool:
    """Whether a message may be in a bundle: one with an unusual id, of several lines, or a large one may not."""
    message_id, body = part
    is_usual = message_id.isascii() and _ID.fullmatch(message_id.encode()) is not None
    return is_usual and 0 < len(body) <= _MOST_BYTES and _END not in body


def bundle_of(parts: Iterable[Part]) -> bytes:
    """The body of a bundle of messages that may share one."""
    return _END.join([message_id.encode() + _AFTER_ID + body for message_id, body in parts])


def parts_of(body: bytes) -> list[Part]:
    """What a bundle holds. Raises ValueError for what is no bundle."""
    lines = body.split(_END, MOST_PARTS)
    if len(lines) > MOST_PARTS:
        raise ValueError(f"expected at most {MOST_PARTS} messages in a bundle, got more")
    parts: list[Part] = []
    for line in lines:
        message_id, _, message = line.partition(_AFTER_ID)
        if not (_ID.fullmatch(message_id) and message):
            raise ValueError(f"expected lines with an id, a space and a message in a bundle, got {line[:80]!r}")
        parts.append((message_id.decode("ascii"), message))
    return parts
