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

    ``jobs`` that it owns; ``batch_sizes`` of a job that it registers; ``open_recurrences`` of a job that trials may run
    for at once, when it begins another one; ``commands_per_s``, and ``bytes_per_s`` of their bodies, that one worker
    takes from it.
    """

    jobs: int | None = None
    batch_sizes: int | None = None
    open_recurrences: int | None = None
    commands_per_s: float | None = None
    bytes_per_s: float | None = None


NO_LIMITS = Quota()
LIMITS = tuple(Quota.__dataclass_fields__)
"""The names of all limits."""


def quota_of(user: str | None, *, quotas: Mapping[str, Quota], operators: frozenset[str]) -> Quota:
    """The quota of a login: its own, or that of EVERY_LOGIN; operators, and who is not known, have no limits."""
    if user is None or user in operators:
        return NO_LIMITS
    return quotas.get(user) or quotas.get(EVERY_LOGIN, NO_LIMITS)


def over_quota(limit: str, detail: str, *, retry_after_s: float | None = None) -> Problem:
    """The refusal of a command that would pass one of the LIMITS; to be sent again where ``retry_after_s`` is given."""
    advice = (
        "an operator can purge deleted jobs (`bso jobs purge`, with --before also those of the last 30 days), or "
        "change the limit (BSO_QUOTAS)"
    )
    if limit != "jobs":
        advice = "an operator can change that limit (BSO_QUOTAS)"
    return Problem(
        type=OVER_QUOTA,
        title="The login has reached its quota",
        detail=f"{detail}; {advice}",
        fields={limit: detail},
        is_retryable=retry_after_s is not None,
        retry_after_s=retry_after_s,
    )
