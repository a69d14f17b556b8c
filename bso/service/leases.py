"""Lapsed leases as commands."""

from __future__ import annotations

import uuid

from bso.domain.commands import ExpireLease, Request
from bso.service.records import LapsedLease


def expiry_of(lapsed: LapsedLease) -> Request:
    """The command that expires a lease, under an id that nobody can know before, nor use for a command of his own.

    Several workers may send one for the same lease: after the first one the trial has another lease, or has ended.
    """
    return Request(
        command_id=str(uuid.uuid4()),  # noqa: TID251 - no decision depends on it
        job_id=lapsed.job_id,
        command=ExpireLease(
            trial_number=lapsed.trial_number,
            trial_id=lapsed.trial_id,
            lease_expires_at=lapsed.lease_expires_at,
        ),
    )
