"""Parked jobs in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

from bso.service.records import ParkedJob


class InMemoryParkedJobs:
    """Jobs whose commands cannot be decided for now, and when others recovered. ``clock`` gives the time, in UTC."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._parked: dict[str, ParkedJob] = {}
        self._recovered: dict[str, datetime] = {}

    async def park(self, job_id: str, *, reason: str, pause_s: float) -> None:
        """Record that a job's commands cannot be decided for now."""
        now = self._clock()
        parked_at = self._parked[job_id].parked_at if job_id in self._parked else now
        retry_at = now + timedelta(seconds=pause_s)
        self._parked[job_id] = ParkedJob(job_id=job_id, reason=reason, parked_at=parked_at, retry_at=retry_at)
        self._recovered.pop(job_id, None)

    async def recover(self, job_ids: Collection[str]) -> None:
        """Record that commands of these jobs can be decided again."""
        for job_id in set(job_ids) & self._parked.keys():
            del self._parked[job_id]
            self._recovered[job_id] = self._clock()

    async def forget_recovered(self, *, older_than_s: float) -> None:
        """Forget jobs that have recovered so long ago; until then their leases do not lapse."""
        until = self._clock() - timedelta(seconds=older_than_s)
        self._recovered = {job_id: at for job_id, at in self._recovered.items() if at > until}

    async def all(self) -> Sequence[ParkedJob]:
        """Jobs whose commands cannot be decided for now, the longest parked first."""
        return sorted(self._parked.values(), key=lambda one: one.parked_at)

    async def locked(self, job_ids: Collection[str]) -> Collection[str]:
        """None: in memory a transaction locks everything."""
        del job_ids
        return ()

    async def try_writing(self) -> None:
        """Memory can always be written."""

    def is_known(self, job_id: str) -> bool:
        """Whether a job is parked, or has recovered a short while ago."""
        return job_id in self._parked or job_id in self._recovered
