"""Events of the log as messages: the same wherever they are published, live or again."""

from __future__ import annotations

from bso.domain.log import RecordedEvent
from bso.schema.codec import encode_event, wire_name
from bso_broker.addresses import routing_key
from bso_broker.messages import Event


def event_message(recorded: RecordedEvent) -> Event:
    """An event as a message. Its id is the same each time: ``job_id:log_epoch:seq``."""
    return Event(
        routing_key=routing_key(wire_name(type(recorded.event)), recorded.job_id),
        body=encode_event(recorded),
        message_id=f"{recorded.job_id}:{recorded.log_epoch}:{recorded.seq}",
    )
