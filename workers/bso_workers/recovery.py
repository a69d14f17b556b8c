"""Jobs in trouble are tried again when their pauses are over, also where no command comes for them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.commands import DescribeJob, Request
from bso.domain.errors import BsoError
from bso.domain.policies import PolicyMissing
from bso.schema.errors import StateTooNew
from bso.service.errors import Conflict, JobDamaged
from bso.service.ports import Store
from bso_workers.decider import Decider
from bso_workers.troubled_jobs import TroubledJobs
from bso_workers.unforeseen import UnforeseenErrors

_log: FilteringBoundLogger = structlog.get_logger(__name__)


class Recovery:
    """Tries each job in trouble once a pause, while this worker is ready. One that ``has_lane`` is tried there."""

    def __init__(
        self,
        *,
        store: Store,
        decider: Decider,
        parking: TroubledJobs,
        unforeseen: UnforeseenErrors,
        ready_for_s: Callable[[], float],
        has_lane: Callable[[str], bool],
        interval_s: float,
    ) -> None:
        self._store = store
        self._decider = decider
        self._parking = parking
        self._unforeseen = unforeseen
        self._ready_for_s = ready_for_s
        self._has_lane = has_lane
        self._interval_s = interval_s

    async def run(self) -> None:
        """Try jobs again, for ever."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.try_again()

    async def try_again(self) -> None:
        """Try the jobs whose pauses are over, one after another."""
        for job_id in self._parking.due():
            if self._parking.is_due(job_id) and self._ready_for_s() and not self._has_lane(job_id):
                await self._try(job_id)

    async def _try(self, job_id: str) -> None:
        self._parking.begin_pause(job_id)
        try:
            trouble = await self._trouble(job_id)
            if trouble is None:
                await self._parking.recovered([job_id])
            else:
                await self._parking.park(job_id, trouble)
        except BsoError as error:
            _log.info("a job could not be tried again", action="recovery_failed", job_id=job_id, reason=str(error))

    async def _trouble(self, job_id: str) -> Exception | None:
        """Why no command of the job can be decided. Raises BsoError where that does not lie in the job."""
        try:
            await self._check(job_id)
        except (Conflict, JobDamaged, PolicyMissing, StateTooNew) as error:
            return error
        except BsoError:
            raise
        except Exception as error:  # noqa: BLE001  noted; others are tried, too
            self._unforeseen.note(error, part="recovery")
            return error
        return None

    async def _check(self, job_id: str) -> None:
        """Lock and read a job as for any command, compare its row with the end of its log, and look for other locks."""
        last_event_id = await self._store.last_event_id(job_id)
        logged = await self._store.history(job_id, after=last_event_id - 1, limit=1)
        question = Request(command_id=str(uuid.uuid4()), job_id=job_id, command=DescribeJob())
        [answer] = await self._decider.execute([question])
        if answer.poison is not None:
            raise JobDamaged(f"job {job_id} cannot be described: {answer.poison}")
        stored = await self._store.job(job_id)
        if stored is not None and logged and logged[0].recorded.seq > stored.last_seq:
            raise JobDamaged(f"the row of job {job_id} is behind its log")
        if await self._parking.locked([job_id]):
            raise Conflict(f"another transaction holds rows of trials of job {job_id}")
