"""Content headers of AMQP messages: the properties in their payloads, written, read, and repaired where they are bad.

A payload is class (2 bytes), weight (2), the body's size (8), flags (2), the properties that these name, and the end of
the frame. AMQP 0-9-1, section 4.2.6.1.
"""

from __future__ import annotations

from pamqp.commands import Basic
from pamqp.constants import FRAME_END_CHAR
from pamqp.encode import field_table
from pamqp.header import ContentHeader

_BASIC = bytes((0, 60))
_MARK = 1  # the field "weight" of a content header, which AMQP 0-9-1 wants to be 0 and nobody uses
_FLAGS = slice(12, 14)  # after class, weight and the body's size; then come the properties, and the frame's end
_PROPERTIES = 14
_TYPE, _ENCODING, _HEADERS, _DELIVERY_MODE, _TIMESTAMP, _MORE = 0x8000, 0x4000, 0x2000, 0x1000, 0x0040, 0x0001
_HARD_TO_READ = _HEADERS | _TIMESTAMP | _MORE
_SHORT_STRINGS = (
    (0x0400, "correlation_id"),
    (0x0200, "reply_to"),
    (0x0100, "expiration"),
    (0x0080, "message_id"),
    (0x0010, "user_id"),
)
"""The properties of our own messages beside headers and delivery_mode, in their order on the wire."""
_OTHERS = ("content_encoding", "priority", "timestamp", "message_type", "app_id", "cluster_id")
_OURS = _HEADERS | _DELIVERY_MODE | sum(flag for flag, _ in _SHORT_STRINGS)


def content_header(properties: Basic.Properties, size: int) -> bytes:
    """The payload for these properties and a body of so many bytes. Raises ValueError for properties beside ours."""
    flags, parts = 0, []
    if any(getattr(properties, name) for name in _OTHERS):
        ours = ", ".join(name for _, name in _SHORT_STRINGS)
        raise ValueError(f"expected only {ours}, content_type, headers and delivery_mode")
    if properties.content_type is not None:
        flags |= _TYPE
        parts.append(short_string(properties.content_type))
    if properties.headers:
        flags |= _HEADERS
        parts.append(field_table(properties.headers))
    if properties.delivery_mode is not None:
        flags |= _DELIVERY_MODE
        parts.append(bytes((properties.delivery_mode,)))
    for flag, name in _SHORT_STRINGS:
        text = getattr(properties, name)
        if text is not None:
            flags |= flag
            parts.append(short_string(text))
    return b"".join((_BASIC, bytes(2), size.to_bytes(8), flags.to_bytes(2), *parts, FRAME_END_CHAR))


def short_string(text: str) -> bytes:
    """A text of at most 255 bytes with its length."""
    encoded = text.encode()
    return bytes((len(encoded),)) + encoded


def properties_in(payload: bytes) -> Basic.Properties:
    """The properties in the payload of a content header."""
    flags = int.from_bytes(payload[_FLAGS])
    if flags & ~_OURS or flags & _HEADERS:
        header = ContentHeader()
        header.unmarshal(payload[:-1])
        return header.properties
    properties = Basic.Properties()
    at = _PROPERTIES
    if flags & _DELIVERY_MODE:
        properties.delivery_mode = payload[at]
        at += 1
    for flag, name in _SHORT_STRINGS:
        if flags & flag:
            start, at = at + 1, at + 1 + payload[at]
            setattr(properties, name, payload[start:at].decode())
    return properties


def is_mended(payload: bytes) -> bool:
    """Whether the properties could not be read, and are missing here."""
    return int.from_bytes(payload[2:4]) == _MARK


def readable(payload: bytes) -> bytes:
    """A content header's payload as it is, or if it cannot be read one as long that has no properties and a mark.

    A delivery mode that does not exist becomes "transient": aio-pika raises an error where it makes the message.
    """
    if not _can_be_read(payload):
        # The part after the flags is left where it is, and skipped: the frame's length was read before.
        return payload[:2] + _MARK.to_bytes(2) + payload[4:12] + bytes(2) + payload[_PROPERTIES:]
    flags = int.from_bytes(payload[_FLAGS])
    if flags & _DELIVERY_MODE and not flags & _MORE:
        at = _delivery_mode_at(flags, payload)
        if payload[at : at + 1] not in (b"\1", b"\2"):
            return payload[:at] + b"\1" + payload[at + 1 :]
    return payload


def _can_be_read(payload: bytes) -> bool:
    hard = int.from_bytes(payload[_FLAGS]) & (_HARD_TO_READ | _TYPE | _ENCODING)
    if hard == _HEADERS and payload[_PROPERTIES : _PROPERTIES + 4] == bytes(4):
        hard = 0  # aio-pika sends a table of headers also where there are none
    if not hard & _HARD_TO_READ and payload[_PROPERTIES:-1].isascii():
        return True  # most are: reading each twice would cost as much as everything else here
    try:
        ContentHeader().unmarshal(payload[:-1])
    except Exception:  # noqa: BLE001  # it raises whatever struct, datetime and codecs raise
        return False
    return True


def _delivery_mode_at(flags: int, payload: bytes) -> int:
    at = _PROPERTIES
    if flags & _TYPE:
        at += 1 + payload[at]
    if flags & _ENCODING:
        at += 1 + payload[at]
    if flags & _HEADERS:
        at += 4 + int.from_bytes(payload[at : at + 4])
    return at
