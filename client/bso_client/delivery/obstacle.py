"""What keeps commands from the optimizer, in words: it is away, it refuses this process, or it asks for patience."""

from __future__ import annotations

from dataclasses import dataclass

from bso.domain.errors import BsoError, Misconfigured
from bso.domain.quotas import OVER_QUOTA
from bso.domain.replies import Problem
from bso_client.errors import Unreachable


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """``words`` follow "the optimizer"; ``until`` says when commands are delivered; ``action`` is for log records."""

    action: str
    words: str
    until: str


AWAY = Obstacle(action="optimizer_away", words="is out of reach", until="later")
REFUSED = Obstacle(action="optimizer_refuses", words="refuses this process", until="once that is corrected")
AT_QUOTA = Obstacle(action="at_quota", words="takes no more of this login now", until="as its quota allows")


class _AtQuota(Unreachable):
    """The optimizer is there, and the login has to wait."""


def declined(problem: Problem) -> Unreachable:
    """The error that stands for a problem after which a command may be sent again."""
    kind = _AtQuota if problem.type == OVER_QUOTA else Unreachable
    return kind(f"{problem.title}: {problem.detail}")


def obstacle_of(error: BsoError) -> Obstacle:
    """What an error that commands have met means."""
    if isinstance(error, Misconfigured):
        return REFUSED
    return AT_QUOTA if isinstance(error, _AtQuota) else AWAY
