"""Tokens: what a client of a gateway shows instead of a login of the broker. Rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase

from bso.domain.identifiers import login_problem
from bso.domain.rights import Right

ALL_JOBS = "*"
MAX_PATTERN = 120
_PATTERN = re.compile(r"(?:[A-Za-z0-9._+:*?-]|\[[A-Za-z0-9._+:!-]+\])+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What a token lets its bearer do: in the name of ``user``, what takes at most ``right``, with jobs like ``jobs``.

    ``token_id`` names it, in lists and in the secret. ``jobs`` is a pattern of job_ids (``*``, ``?``, ``[a-z]``). What
    owners, teams and grants allow holds beside it. It was made to last for ``lifetime_s`` [s] (None: for ever); once
    another one takes its place, it expires earlier.
    """

    token_id: str
    user: str
    right: Right
    jobs: str
    created_at: datetime
    lifetime_s: int | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None

    def why_invalid(self, now: datetime) -> str | None:
        """Why it opens nothing now; None: it is valid."""
        if self.revoked_at is not None:
            return f"token {self.token_id} was revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return f"token {self.token_id} has expired"
        return None

    def covers(self, right: Right | None, job_id: str | None) -> bool:
        """Whether it may be used for what takes this right (None: what only an owner may) with a job (None: any)."""
        is_enough = (right or Right.OPERATE) in self.right.included
        return is_enough and (job_id is None or fnmatchcase(job_id, self.jobs))


def token_problems(user: str, jobs: str) -> dict[str, str]:
    """What is wrong with a token that somebody wants, by field."""
    problems: dict[str, str] = {}
    if problem := login_problem(user):
        problems["name"] = problem
    if not 1 <= len(jobs) <= MAX_PATTERN or not _PATTERN.fullmatch(jobs):  # any other one would cover no job
        problems["jobs"] = (
            f"must be a pattern of 1 to {MAX_PATTERN} characters: those of job ids, *, ? and [a-z], such as 'vision-*'"
        )
    return problems
