"""What jobs saved, as metrics: looked up again and again, so that each worker shows the same of all jobs."""

from __future__ import annotations

import asyncio

import structlog
from prometheus_client import Gauge
from structlog.typing import FilteringBoundLogger

from bso.domain.baseline import Uncertain
from bso.domain.errors import BsoError
from bso.domain.savings import total_saved
from bso.service.ports import Reads
from bso.service.queries import JobSavings
from bso.service.query_answers import MOST_SAVINGS, readable_overviews, savings_of
from bso_workers.metrics import ENERGIES, Metrics

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_MOST_JOBS = 2000
"""Jobs that have series of their own; those whose ids sort last have none."""
_REST = 3.0
"""For so many times as long as reading a page took it rests, while decisions use the database."""


class SavingsWatch:
    """Reads what each job saved every so often; ``interval_s`` 0: never."""

    def __init__(self, *, reads: Reads, metrics: Metrics, interval_s: float) -> None:
        self._reads = reads
        self._metrics = metrics
        self._interval_s = interval_s
        self._shown: set[str] = set()

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            if not self._interval_s:
                await asyncio.Event().wait()
            try:
                await self.look()
            except BsoError as error:
                _log.info("what jobs saved could not be read", action="savings_failed", reason=str(error))
            await asyncio.sleep(self._interval_s)

    async def look(self) -> None:
        """Show what each job saved, and forget those that are gone."""
        seen: set[str] = set()
        after: str | None = ""
        clock = asyncio.get_running_loop().time
        while after is not None and len(seen) < _MOST_JOBS:
            began_s = clock()
            page = await readable_overviews(self._reads, after=after, limit=MOST_SAVINGS)
            jobs, _ = savings_of(page)
            for job in jobs:
                self._show(job)
            seen |= {job.job_id for job in jobs}
            after = page[-1].summary.job_id if len(page) == MOST_SAVINGS else None
            await asyncio.sleep(_REST * (clock() - began_s))
        for job_id in self._shown - seen:
            self._metrics.forget_job(job_id)
        self._shown = seen

    def _show(self, job: JobSavings) -> None:
        total = total_saved((job.job_id, one) for one in job.saved)
        self._metrics.job_models.labels(job.job_id).set(total.models)
        self._metrics.job_trials.labels(job.job_id).set(total.trials)
        for energy, estimate in zip(ENERGIES, (total.energy_j, total.assumed_energy_j), strict=True):
            self._set(self._metrics.job_energy, self._metrics.job_energy_error, estimate, job.job_id, energy)
        self._set(self._metrics.job_time, self._metrics.job_time_error, total.time_s, job.job_id)

    def _set(self, value: Gauge, error: Gauge, estimate: Uncertain | None, *labels: str) -> None:
        """Show an estimate; what is not known has no series."""
        if estimate is None:
            for gauge in (value, error):
                gauge.remove(*labels)
            return
        value.labels(*labels).set(estimate.value)
        error.labels(*labels).set(estimate.error)
