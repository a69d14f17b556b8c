"""How much a job may know: its whole state is written whenever something in it changes."""

from __future__ import annotations

from bso.domain.job import Job

MOST_KNOWN = 500
"""What a job may know: its versions, each counted for every hardware kind that it has run on, or has inherited from.

With 500 a state has 2 MB, and takes 0.15 s of CPU to be written.
"""
_MANY = 400


def outgrown(job: Job, *, added: int) -> str | None:
    """Why a job may not have so many more versions and hardware kinds, with what to do; None: it may."""
    known = _known(job)
    if known + added <= MOST_KNOWN:
        return None
    return (
        f"job {job.job_id} has {known} versions, counted for every hardware kind of each, and may have {MOST_KNOWN}, "
        f"this would add {added}: register another job (like={job.job_id!r} hands on what was learnt), or delete this "
        "one"
    )


def nearly_outgrown(job: Job, *, added: int) -> str | None:
    """A warning that a job will soon have all versions that it may have; None: it has room."""
    known = _known(job) + added
    if known < _MANY:
        return None
    return (
        f"job {job.job_id} has {known} of the {MOST_KNOWN} versions that it may have, counted for every hardware kind "
        "of each: beyond that registrations are refused"
    )


def _known(job: Job) -> int:
    return sum(max(1, len(version.knowledge)) for version in job.versions.values())
