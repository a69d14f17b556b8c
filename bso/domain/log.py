"""An event as it stands in the log: with its place and the command it came from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from bso.domain.events import Event

FIRST_EPOCH = 1
"""The epoch in which a log begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """One row of a job's history. ``seq`` is dense per job; ``part`` numbers the events of one command from 0.

    ``log_epoch``: in which epoch of the log it was recorded. Restoring a backup begins another one, in which numbers
    above the backup's are given again: (log_epoch, seq) names one event of a job.
    """

    job_id: str
    seq: int
    recorded_at: datetime
    command_id: str
    part: int
    event: Event
    log_epoch: int = FIRST_EPOCH
