"""Lapsed leases as commands."""

from __future__ import annotations

from bso.domain.commands import ExpireLease, Request
from bso.domain.identifiers import expiry_command_id
from bso.service.errors import JobDamaged
from bso.service.records import LapsedLease


def expiry_of(lapsed: LapsedLease) -> Request:
    """The command that expires a lease. All workers derive the same command_id for it, so it is decided once.

    Raises JobDamaged where the trial's row cannot be read.
    """
    try:
        command_id = expiry_command_id(lapsed.trial_id, lapsed.lease_expires_at.isoformat())
    except (ValueError, AttributeError) as error:
        raise JobDamaged(f"trial {lapsed.trial_number} of job {lapsed.job_id} cannot be read: {error}") from error
    return Request(
        command_id=command_id,
        job_id=lapsed.job_id,
        command=ExpireLease(
            trial_number=lapsed.trial_number,
            trial_id=lapsed.trial_id,
            lease_expires_at=lapsed.lease_expires_at,
        ),
    )
