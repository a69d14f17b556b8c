"""How reply queues and events are addressed, and who may be answered where."""

from __future__ import annotations

import hashlib
import re
import uuid
from urllib.parse import quote

REPLY_PREFIX = "bso.reply."
_REPLY_ADDRESS = re.compile(r"bso\.reply\.(?P<user>[^.]+)\.[0-9a-f]{32}")
_LONGEST_KEY = 255  # AMQP's limit, in bytes, also for a correlation_id
_NOBODYS = "anonymous."


def new_reply_queue(user: str) -> str:
    """A fresh name for a reply queue of one connection of this user."""
    return f"{REPLY_PREFIX}{encode_word(user)}.{uuid.uuid4().hex}"


def new_event_queue(user: str) -> str:
    """A fresh name for a subscriber's queue: what lets a user own reply queues lets it own this one, too."""
    return f"{REPLY_PREFIX}{encode_word(user)}.events.{uuid.uuid4().hex}"


def is_reply_address(name: str | None, user_id: str | None) -> bool:
    """Whether a reply may be sent to this queue: it must be a reply queue, and the sender's where the sender is known.

    Without this check a command could ask for its reply in any queue, for example in the queue of commands.
    """
    match = _REPLY_ADDRESS.fullmatch(name or "")
    return match is not None and (user_id is None or match["user"] == encode_word(user_id))


def reply_id(correlation_id: str | None, user_id: str | None) -> str:
    """The correlation_id of the reply to a message; marked where the message names no login.

    Such a message may name any reply queue, so its reply must not be taken for one to a command of the queue's owner.
    """
    if user_id is not None:
        return correlation_id or ""
    return f"{_NOBODYS}{correlation_id or ''}".encode()[:_LONGEST_KEY].decode(errors="ignore")


def routing_key(event_type: str, job_id: str) -> str:
    """The key of an event: ``<event type>.<job_id>``, dots of the id percent-encoded so that it is one word.

    An id with so many dots that the key would not fit into AMQP's 255 bytes is replaced by its SHA-256: publishers
    and subscribers still meet, only the id cannot be read back from the key.
    """
    key = f"{event_type}.{encode_word(job_id)}"
    if len(key) <= _LONGEST_KEY:
        return key
    return f"{event_type}.{hashlib.sha256(job_id.encode()).hexdigest()}"


def event_pattern(*, event_type: str | None = None, job_id: str | None = None) -> str:
    """The binding that catches the events of one type, of one job, both, or (without arguments) all of them."""
    if job_id is None:
        return f"{event_type or '*'}.*"
    return routing_key(event_type or "*", job_id)


def encode_word(text: str) -> str:
    """Percent-encode a text into one word of a topic: no dots, no wildcards."""
    return quote(text, safe="+:").replace(".", "%2E")
