"""The envelope around every message, version 1.0.

``{"schema": "1.0", "type": "begin_trial", "command_id": "<UUID>", "job_id": "...", "sent_at": "<ISO 8601>",
"trace": {...}, "body": {...}}``. Unknown fields are ignored, an unknown major version is refused. Numbers that JSON
lacks travel as the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from bso.schema.errors import MalformedMessage, UnsupportedSchema
from bso.schema.wrong_values import explained

SCHEMA_MAJOR = 1
SCHEMA_MINOR = 0
"""Raised with fields that may be missing."""
SCHEMA_VERSION = f"{SCHEMA_MAJOR}.{SCHEMA_MINOR}"
MAX_MESSAGE_BYTES = 1_048_576
MAX_ANSWER_BYTES = 4 * 1_048_576
"""Replies and events come from our own workers and may be larger: a description of a thousand batch sizes is."""
PROBLEM_URN = "urn:bso:problem:"
"""Before the type of a problem that a gateway answers with over HTTP (RFC 9457)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """One message before its body is looked at. Events also carry ``seq``, ``part`` and ``log_epoch``.

    ``on_behalf_of``: the user for whom a gateway sends a command; only from a gateway's login it is believed.
    """

    type: str
    command_id: str
    body: Any
    schema: str = SCHEMA_VERSION
    job_id: str | None = None
    sent_at: datetime | None = None
    seq: int | None = None
    part: int | None = None
    log_epoch: int | None = None
    on_behalf_of: str | None = None
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SchemaAlone:
    schema: str | int | float = SCHEMA_VERSION


@cache
def adapter(message_type: Any) -> TypeAdapter[Any]:
    """The validator of a message class, built at its first use."""
    return TypeAdapter(message_type)


def validated(message_type: Any, data: Any, what: str) -> Any:
    """Data as a value of a message class. Raises MalformedMessage naming each offending field."""
    try:
        return adapter(message_type).validate_python(data)
    except ValidationError as error:
        raise MalformedMessage(f"{what}: {explain(error)}") from error


def unseal(body: bytes, *, most_bytes: int = MAX_MESSAGE_BYTES) -> Envelope:
    """Read an envelope. Raises MalformedMessage or UnsupportedSchema, saying what came.

    A future major version is UnsupportedSchema whatever else its envelope looks like.
    """
    if len(body) > most_bytes:
        raise MalformedMessage(f"a message may have at most {most_bytes} bytes, got {len(body)}")
    try:
        envelope: Envelope = adapter(Envelope).validate_json(body)
    except ValidationError as error:
        _check_major(_schema_alone(body))
        raise MalformedMessage(f"not an envelope: {explain(error)}") from error
    _check_major(envelope.schema)
    return envelope


def _check_major(schema: str) -> None:
    if schema.partition(".")[0] != str(SCHEMA_MAJOR):
        raise UnsupportedSchema(
            f"this program reads schema {SCHEMA_MAJOR}.x, got {schema[:40]!r}: upgrade the older side"
        )


def _schema_alone(body: bytes) -> str:
    """The schema of something that is no envelope of ours; this program's own if it says none."""
    try:
        alone: _SchemaAlone = adapter(_SchemaAlone).validate_json(body)
    except ValidationError:
        return SCHEMA_VERSION
    return str(alone.schema)


def explain(error: ValidationError) -> str:
    """A validation error as one line: each field, what was expected, what came."""
    parts = []
    for fault in error.errors(include_url=False)[:5]:
        place = ".".join(map(str, fault["loc"])) or "message"
        parts.append(f"{place}: {explained(fault)}")
    return "; ".join(parts)
