"""Several messages in one: what a gateway has under way for many clients costs everybody less that way.

A bundle has lines; each is an id, a space, and a message of one line, as JSON is. Its properties are those of all its
messages, but for the id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

BUNDLE = "application/x-bso-bundle"
"""The content_type of a bundle."""
MOST_PARTS = 32
"""One worker decides what is in a bundle, and it is the broker's until all of it is settled."""
_MOST_BYTES = 262_144
_MOST_OF_AN_ID = 255  # bytes, as of a property
_END, _AFTER_ID = b"\n", b" "

Part = tuple[str, bytes]
"""An id and a message."""
_Item = TypeVar("_Item")


def bundle_of(parts: Iterable[Part]) -> bytes:
    """The body of a bundle of messages that fit together (``together``)."""
    return _END.join([message_id.encode() + _AFTER_ID + body for message_id, body in parts])


def parts_of(body: bytes) -> list[Part]:
    """What a bundle holds. Raises ValueError for what is no bundle."""
    lines = body.split(_END, MOST_PARTS)
    if len(lines) > MOST_PARTS:
        raise ValueError(f"expected at most {MOST_PARTS} messages in a bundle, got more")
    parts: list[Part] = []
    for line in lines:
        message_id, space, message = line.partition(_AFTER_ID)
        if not (0 < len(message_id) <= _MOST_OF_AN_ID and space and message):
            raise ValueError("expected lines with an id, a space and a message in a bundle")
        parts.append((message_id.decode(), message))
    return parts


def together(items: Iterable[tuple[_Item, Part]]) -> Iterator[Sequence[tuple[_Item, Part]]]:
    """Groups of what may go out as one message, in their order; one that is large or has several lines goes alone."""
    group: list[tuple[_Item, Part]] = []
    size = 0
    for item, (message_id, body) in items:
        takes = len(message_id) + len(body) + 2
        if group and (len(group) == MOST_PARTS or size + takes > _MOST_BYTES or _END in body):
            yield group
            group, size = [], 0
        group.append((item, (message_id, body)))
        size += takes if _END not in body else _MOST_BYTES
    if group:
        yield group
