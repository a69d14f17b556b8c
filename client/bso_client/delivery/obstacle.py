"""What keeps commands from the optimizer, in words: it is away, or it refuses this process, which is no outage."""

from __future__ import annotations

from dataclasses import dataclass

from bso.domain.errors import BsoError, Misconfigured


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """``words`` follow "the optimizer"; ``until`` says when commands are delivered; ``action`` is for log records."""

    action: str
    words: str
    until: str


AWAY = Obstacle(action="optimizer_away", words="is out of reach", until="later")
REFUSED = Obstacle(action="optimizer_refuses", words="refuses this process", until="once that is corrected")


def obstacle_of(error: BsoError) -> Obstacle:
    """What an error that commands have met means."""
    return REFUSED if isinstance(error, Misconfigured) else AWAY
