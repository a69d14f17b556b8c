"""Quotas: how much one login may have, and how fast it may send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bso.domain.replies import Problem

EVERY_LOGIN = "*"
OVER_QUOTA = "over_quota"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How much one login may have, and how fast it may send; None: no limit.

    ``jobs`` that it owns; ``batch_sizes`` of a job that it registers; ``open_recurrences`` of a job, above which it
    begins no other one there; ``commands_per_s``, and ``bytes_per_s`` of their bodies, that one worker takes from it.
    """

    jobs: int | None = 10_000
    batch_sizes: int | None = None
    open_recurrences: int | None = None
    commands_per_s: float | None = None
    bytes_per_s: float | None = None

    @property
    def is_rate_limited(self) -> bool:
        """Whether how fast the login may send is limited."""
        return self.commands_per_s is not None or self.bytes_per_s is not None


NO_LIMITS = Quota(jobs=None)
LIMITS = tuple(Quota.__dataclass_fields__)
"""The names of all limits."""
_DEFAULT = Quota()


def quota_of(user: str | None, *, quotas: Mapping[str, Quota], operators: frozenset[str]) -> Quota:
    """The quota of a login: its own, or that of EVERY_LOGIN; operators, and who is not known, have no limits."""
    if user is None or user in operators:
        return NO_LIMITS
    return quotas.get(user) or quotas.get(EVERY_LOGIN, _DEFAULT)


def over_quota(limit: str, detail: str, *, retry_after_s: float | None = None) -> Problem:
    """The refusal of a command that would pass one of the LIMITS; to be sent again where ``retry_after_s`` is given."""
    advice = "an operator can change that limit (BSO_QUOTAS)"
    return Problem(
        type=OVER_QUOTA,
        title="The login has reached its quota",
        detail=f"{detail}; {advice}",
        fields={limit: detail},
        is_retryable=retry_after_s is not None,
        retry_after_s=retry_after_s,
    )
