"""The reaper: notices leases that lapsed, and has them expired like any other command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.errors import BsoError
from bso.schema.errors import StateTooNew
from bso.service.answers import Answer
from bso.service.errors import JobDamaged
from bso.service.leases import expiry_of
from bso.service.ports import Store
from bso.service.records import LapsedLease
from bso_workers.decider import Decider
from bso_workers.metrics import Metrics
from bso_workers.outbox import EventOutbox
from bso_workers.troubled_jobs import TroubledJobs
from bso_workers.unforeseen import UnforeseenErrors

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_MOST_AT_ONCE = 100


class Reaper:
    """Expires lapsed leases, but only while this worker knows that their holders could have renewed them.

    That is after one whole lease in which it was ready without a break, and with no command waiting in the queue:
    after an outage the renewals come first. Any number of reapers may look at once: a lease expires once.
    """

    def __init__(
        self,
        *,
        store: Store,
        decider: Decider,
        outbox: EventOutbox,
        metrics: Metrics,
        unforeseen: UnforeseenErrors,
        parking: TroubledJobs,
        ready_for_s: Callable[[], float],
        waiting_commands: Callable[[], Awaitable[int]],
        lease_s: float,
        interval_s: float,
    ) -> None:
        self._store = store
        self._decider = decider
        self._outbox = outbox
        self._metrics = metrics
        self._unforeseen = unforeseen
        self._parking = parking
        self._ready_for_s = ready_for_s
        self._waiting_commands = waiting_commands
        self._lease_s = lease_s
        self._interval_s = interval_s

    async def run(self) -> None:
        """Reap, for ever."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.reap()
            except BsoError as error:
                _log.info("the reaper could not finish its round", action="reaper_failed", reason=str(error))

    async def reap(self) -> int:
        """Expire lapsed leases if this worker may; returns how many of them it was that this worker expired."""
        if self._ready_for_s() < self._lease_s or await self._waiting_commands():
            return 0
        await self._store.parked_jobs.forget_recovered(older_than_s=self._lease_s)
        reaped = 0
        failed: set[str] = set()  # their leases would fill the page again and again
        while True:
            lapsed = await self._store.lapsed_leases(without=failed, limit=_MOST_AT_ONCE)
            had_failed = len(failed)
            for job_id in dict.fromkeys(lease.job_id for lease in lapsed):
                own = [lease for lease in lapsed if lease.job_id == job_id]
                expired = await self._reap_of(job_id, own)
                reaped += expired
                if not expired:
                    failed.add(job_id)
            if len(lapsed) < _MOST_AT_ONCE or len(failed) == had_failed:
                return reaped

    async def _reap_of(self, job_id: str, lapsed: Sequence[LapsedLease]) -> int:
        """Expire leases of one job, whose trouble is not that of others; returns how many this worker expired."""
        try:
            return await self._expire(job_id, lapsed)
        except BsoError as error:
            _log.info("leases of a job could not be expired", action="reaper_failed", job_id=job_id, reason=str(error))
        except Exception as error:  # noqa: BLE001  noted; others have leases, too
            self._unforeseen.note(error, part="reaper")
        return 0

    async def _expire(self, job_id: str, lapsed: Sequence[LapsedLease]) -> int:
        try:
            answers = await self._decider.execute([expiry_of(lease) for lease in lapsed])
        except (JobDamaged, StateTooNew) as error:
            await self._parking.park(job_id, error)
            return 0
        return sum(self._settle(answer) for answer in answers)

    def _settle(self, answer: Answer) -> bool:
        if answer.poison is not None:
            _log.error(
                "a lapsed lease cannot be expired",
                action="reaper_poison",
                job_id=answer.request.job_id,
                reason=answer.poison,
            )
            return False
        self._outbox.put(answer.events)
        if not answer.events or answer.is_repeat:
            return False
        self._metrics.leases_reaped.inc()
        command = answer.request.command
        _log.info(
            "a trial was silent for a whole lease",
            action="lease_reaped",
            job_id=answer.request.job_id,
            trial_number=getattr(command, "trial_number", None),
        )
        return True
