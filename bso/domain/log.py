"""An event as it stands in the log: with its place and the command it came from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from bso.domain.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """One row of a job's history. ``seq`` is dense per job; ``part`` numbers the events of one command from 0."""

    job_id: str
    seq: int
    recorded_at: datetime
    command_id: str
    part: int
    event: Event
