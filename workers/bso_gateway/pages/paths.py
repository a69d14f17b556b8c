"""The addresses of pages."""

from __future__ import annotations

from urllib.parse import quote

PREFIX = "/ui"


def job_path(job_id: str) -> str:
    """The page of a job."""
    return f"{PREFIX}/jobs/{quote(job_id, safe='')}"


def trial_path(job_id: str, trial_number: int) -> str:
    """The page of a trial."""
    return f"{job_path(job_id)}/trials/{trial_number}"
