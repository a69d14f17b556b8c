"""Events as JSON lines: one object a line, the same from every database.

``{"job_id": ..., "seq": ..., "recorded_at": ..., "type": ..., "command_id": ..., "part": ..., "payload": {...}}``, and
with the first event of a command ``"reply_type"`` and ``"reply"``; ``"log_epoch"`` where it is not the first one. Lines
of ``bso events prune`` lack the reply and begin with the ``event_id`` that the database had given; it means nothing
elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Annotated, Any

from pydantic import AwareDatetime, Field, JsonValue, ValidationError
from pydantic_core import from_json

from bso.domain.identifiers import identifier_problem
from bso.domain.log import FIRST_EPOCH, RecordedEvent
from bso.schema.codec import dump, event_from, json_line, reply_from
from bso.schema.envelope import adapter, explain
from bso.schema.errors import MalformedMessage
from bso.service.records import LoggedEvent
from bso.service.serialization import row_without_reply

_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    job_id: str
    seq: Annotated[int, Field(ge=1, le=_LARGEST)]
    recorded_at: AwareDatetime
    type: str
    command_id: Annotated[str, Field(min_length=1, max_length=36, pattern=r"^[0-9A-Za-z-]+$")]
    part: Annotated[int, Field(ge=0, le=32767)]
    payload: Mapping[str, JsonValue]
    reply_type: str | None = None
    reply: JsonValue = None
    log_epoch: Annotated[int, Field(ge=FIRST_EPOCH, le=_LARGEST)] = FIRST_EPOCH


def event_line(logged: LoggedEvent) -> bytes:
    """An event as a line, without its end."""
    new = logged.new
    fields: dict[str, Any] = {
        "job_id": new.job_id,
        "seq": new.seq,
        "recorded_at": logged.recorded_at.isoformat(),
        "type": new.type,
        "command_id": new.command_id,
        "part": new.part,
        "payload": from_json(new.payload),
    }
    if new.log_epoch != FIRST_EPOCH:
        fields["log_epoch"] = new.log_epoch
    if new.reply is not None:
        fields |= {"reply_type": new.reply_type, "reply": from_json(new.reply)}
    return json_line(fields).encode()


def logged_event(line: bytes | str) -> LoggedEvent:
    """An event from its line. Raises MalformedMessage, naming what is wrong, also with payload and reply."""
    try:
        read: _Line = adapter(_Line).validate_json(line)
    except ValidationError as error:
        raise MalformedMessage(f"not an event: {explain(error)}") from error
    problem = identifier_problem(read.job_id)
    if problem is not None:
        raise MalformedMessage(f"job_id {problem}")
    event = event_from(read.type, read.payload)
    if read.reply_type is not None:
        reply_from(read.reply_type, read.reply)
    recorded_at = read.recorded_at.astimezone(UTC)
    recorded = RecordedEvent(
        job_id=read.job_id,
        seq=read.seq,
        recorded_at=recorded_at,
        command_id=read.command_id,
        part=read.part,
        event=event,
        log_epoch=read.log_epoch,
    )
    # Payload and reply stay as they came: also with fields that this release does not know.
    verbatim = replace(
        row_without_reply(recorded),
        payload=dump(read.payload).decode(),
        reply_type=read.reply_type,
        reply=None if read.reply_type is None else dump(read.reply).decode(),
    )
    return LoggedEvent(new=verbatim, recorded_at=recorded_at)
