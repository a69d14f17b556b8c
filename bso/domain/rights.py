"""Rights: which login may do what with a job. The broker says who a login is; where it does not, everybody may."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum


class Right(Enum):
    """What the owner of a job may grant to another login. Each includes those before it."""

    READ = "read"  # see the job, its trials and its events, and inherit from it
    TRAIN = "train"  # begin trials, and report what came of them
    OPERATE = "operate"  # change the specification, allow batch sizes, delete the job

    @property
    def included(self) -> frozenset[Right]:
        """This right, and those that it includes."""
        members = list(Right)
        return frozenset(members[: members.index(self) + 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A login that is no operator, and the teams that there are: what it takes to say which jobs it may read."""

    login: str
    teams: frozenset[str]

    @property
    def team(self) -> str | None:
        """The team that it belongs to."""
        return team_of(self.login, self.teams)


def team_of(name: str, teams: Iterable[str]) -> str | None:
    """The team that a login or a job belongs to by its name, ``vision`` or ``vision-...``; None: to none.

    Of several that fit, the one with the longest name.
    """
    fitting = (team for team in teams if name == team or name.startswith(f"{team}-"))
    return max(fitting, key=len, default=None)


def owns(user: str | None, *, owner: str | None, job_id: str, teams: frozenset[str]) -> bool:
    """Whether a login owns a job, by itself or through its team: the owner's, or the one that the job is named after.

    True where no login is known (``user`` None: embedded, or a broker without separate logins), and for a job that was
    registered so (``owner`` None) unless it is named after another team.
    """
    if user is None or user == owner:
        return True
    team, of_job = team_of(user, teams), team_of(job_id, teams)
    if team is not None and team in (of_job, team_of(owner or "", teams)):
        return True
    return owner is None and of_job is None


def is_granted(right: Right, user: str | None, grants: Mapping[str, Right]) -> bool:
    """Whether a login has been granted a right, or one that includes it."""
    granted = grants.get(user or "")
    return granted is not None and right in granted.included
