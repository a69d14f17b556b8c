"""Ids of commands: UUIDs of version 7, which sort by the time they were made."""

from __future__ import annotations

import os
import time
import uuid

_BEGINNINGS = uuid.UUID("9a0c2f0e-3f0b-5b52-8a53-0d5a5f1f6a11")


def beginning_id(training: str) -> str:
    """The id of the command that registers the training with this key: sent again, it registers no second one."""
    return str(uuid.uuid5(_BEGINNINGS, training))


def new_command_id() -> str:
    """A fresh UUIDv7 (RFC 9562)."""
    milliseconds = time.time_ns() // 1_000_000
    random_bits = int.from_bytes(os.urandom(10))
    value = (milliseconds & (1 << 48) - 1) << 80 | random_bits
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))
