"""Events as rows of the log, and back."""

from __future__ import annotations

from dataclasses import replace

from pydantic_core import from_json

from bso.domain.events import EpochReported
from bso.domain.log import RecordedEvent
from bso.domain.replies import Reply
from bso.domain.trial import EpochReport
from bso.schema.codec import event_from, event_payload, reply_payload
from bso.schema.errors import MalformedMessage, StateTooNew
from bso.service.records import LoggedEvent, NewEvent


def row_of(recorded: RecordedEvent, reply: Reply) -> NewEvent:
    """An event as a row; the first of a command carries the command's reply."""
    if recorded.part:
        return row_without_reply(recorded)
    reply_type, reply_text = reply_payload(reply)
    return replace(row_without_reply(recorded), reply_type=reply_type, reply=reply_text)


def row_without_reply(recorded: RecordedEvent) -> NewEvent:
    """An event as a row that answers nobody."""
    event_type, payload = event_payload(recorded.event)
    return NewEvent(
        job_id=recorded.job_id,
        seq=recorded.seq,
        type=event_type,
        payload=payload,
        trial_number=getattr(recorded.event, "trial_number", None),
        epoch=recorded.event.epoch if isinstance(recorded.event, EpochReported) else None,
        command_id=recorded.command_id,
        part=recorded.part,
        log_epoch=recorded.log_epoch,
    )


def recorded_from(logged: LoggedEvent) -> RecordedEvent:
    """An event from its row. Raises StateTooNew where this release cannot read it."""
    row = logged.new
    try:
        event = event_from(row.type, from_json(row.payload))
    except (MalformedMessage, ValueError) as error:
        raise StateTooNew(f"event {row.seq} of job {row.job_id} cannot be read by this release: {error}") from error
    return RecordedEvent(
        job_id=row.job_id,
        seq=row.seq,
        recorded_at=logged.recorded_at,
        command_id=row.command_id,
        part=row.part,
        event=event,
        log_epoch=row.log_epoch,
    )


def epoch_report_of(event_type: str, payload: str) -> EpochReport:
    """The report in the row of an epoch_reported event. Raises StateTooNew where this release cannot read it."""
    try:
        event = event_from(event_type, from_json(payload))
    except (MalformedMessage, ValueError) as error:
        raise StateTooNew(f"a recorded epoch cannot be read by this release: {error}") from error
    if not isinstance(event, EpochReported):
        raise StateTooNew(f"a recorded epoch cannot be read by this release: it stands in a {event_type} event")
    return report_in(event)


def report_in(event: EpochReported) -> EpochReport:
    """The report that an event records."""
    return EpochReport(
        epoch=event.epoch,
        time_s=event.time_s,
        energy_j=event.energy_j,
        metric=event.metric,
        is_profiling=event.is_profiling,
    )
