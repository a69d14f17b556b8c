"""Jobs in trouble: their commands cannot be decided for now, and wait until they can. All other jobs go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.commands import FACTS, Command, Request
from bso.domain.errors import BsoError
from bso.domain.policies import PolicyMissing
from bso.schema.errors import StateTooNew
from bso.service.errors import Conflict, JobDamaged
from bso.service.ports import ParkedJobs
from bso_broker.parked_commands import parking_queue
from bso_broker.topology import PARKED_FOR_S
from bso_workers.admission import Admitted
from bso_workers.metrics import Metrics
from bso_workers.settlement import Settlement

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 60.0
_SOON_S = 1.0
_HELD_S = 15.0
"""Longer than a frozen session holds a lock: until then a job that somebody holds is tried again soon each time."""
_MANY = 10
LONGEST_HOLD_S = 10.0
"""So long a worker keeps a fact that the broker cannot take, while its sender waits for a reply."""


@dataclass(slots=True, kw_only=True)
class _Parked:
    """A job in trouble. ``kept`` are commands that lie in the broker's parking queues, and until when.

    ``advice`` is what the senders of its commands can do; empty: nothing.
    """

    advice: str = ""
    since_s: float
    pause_s: float
    retry_at_s: float
    kept: dict[str, float] = field(default_factory=dict)


class TroubledJobs:
    """The jobs in trouble that this worker knows of, and what becomes of their commands. ``clock`` is monotonic [s].

    A job is tried again when its pause is over: 5 s at first, then twice as long each time, 60 s at most; one that
    somebody holds after 1 s, as long as that may be a frozen session whose locks the database soon releases. What the
    database holds of parked jobs is for people, for other workers, and for leases, which do not lapse meanwhile.
    """

    def __init__(
        self,
        *,
        jobs: ParkedJobs,
        settlement: Settlement,
        metrics: Metrics,
        clock: Callable[[], float],
        limit_s: float,
    ) -> None:
        self._jobs = jobs
        self._settlement = settlement
        self._metrics = metrics
        self._clock = clock
        self._limit_s = limit_s
        self._parked: dict[str, _Parked] = {}
        self._harmed: dict[str, set[type[Command]]] = {}
        metrics.parked_jobs.set_function(lambda: len(self._parked))

    def knows(self, job_id: str) -> bool:
        """Whether a job is in trouble; with its pause over, it may be tried again."""
        return job_id in self._parked

    def pause_s(self, job_id: str) -> float:
        """How long a job must still be left alone [s]; 0: not at all."""
        parked = self._parked.get(job_id)
        return 0.0 if parked is None else max(0.0, parked.retry_at_s - self._clock())

    def due(self) -> Sequence[str]:
        """The jobs in trouble whose pauses are over."""
        return [job_id for job_id in self._parked if self.is_due(job_id)]

    def is_due(self, job_id: str) -> bool:
        """Whether a job is in trouble, and its pause over."""
        return job_id in self._parked and not self.pause_s(job_id)

    def begin_pause(self, job_id: str) -> None:
        """Leave a job in trouble alone for as long as before, while it is tried."""
        parked = self._parked[job_id]
        parked.retry_at_s = self._clock() + parked.pause_s

    @property
    def obstacle(self) -> str | None:
        """That so many jobs are in trouble that it can hardly be their own; None: few are."""
        return f"{len(self._parked)} jobs are in trouble" if len(self._parked) >= _MANY else None

    async def refresh(self) -> None:
        """Learn which jobs other workers have parked, and which have recovered there. Raises BsoError."""
        listed = {job.job_id for job in await self._jobs.all()}
        for job_id in self._parked.keys() - listed:
            del self._parked[job_id]
        for job_id in listed - self._parked.keys():
            now_s = self._clock()
            self._parked[job_id] = _Parked(since_s=now_s, pause_s=_FIRST_PAUSE_S / 2, retry_at_s=now_s)

    async def park(self, job_id: str, error: Exception) -> None:
        """Leave a job alone for a while. Raises what keeps that from being recorded: for people, and other workers."""
        parked = self._parked.get(job_id)
        now_s = self._clock()
        since_s = now_s if parked is None else parked.since_s
        pause_s = _FIRST_PAUSE_S if parked is None else min(_LONGEST_PAUSE_S, 2.0 * parked.pause_s)
        if isinstance(error, Conflict) and now_s - since_s < _HELD_S:
            pause_s = _SOON_S
        reason = str(error) if isinstance(error, BsoError) else f"{type(error).__name__}: {error}"
        kept = {} if parked is None else parked.kept
        self._parked[job_id] = _Parked(
            advice=reason if isinstance(error, PolicyMissing) else "",
            since_s=since_s,
            pause_s=pause_s,
            retry_at_s=now_s + pause_s,
            kept=kept,
        )
        await self._jobs.park(job_id, reason=reason, pause_s=pause_s)
        self._metrics.parks.inc()
        say = _log.warning if parked is None else _log.info
        say(
            "a job is in trouble: its commands wait, all other jobs go on",
            action="job_parked",
            job_id=job_id,
            pause_s=pause_s,
            reason=reason,
            remedy=remedy(job_id, error),
        )

    async def locked(self, job_ids: Collection[str]) -> Collection[str]:
        """Those of these jobs of whose trials somebody else holds rows; none where the database does not say."""
        try:
            return await self._jobs.locked(job_ids)
        except BsoError:
            return ()

    async def works(self, job_ids: Sequence[str]) -> None:
        """Commands of these jobs have been decided: what was parked is not any more. Raises BsoError."""
        for job_id in job_ids:
            self._harmed.pop(job_id, None)
        await self.recovered(job_ids)

    async def recovered(self, job_ids: Sequence[str]) -> None:
        """Commands of these jobs can be decided; whether rules fail over them is not known yet. Raises BsoError."""
        recovered = sorted(set(job_ids) & self._parked.keys())
        if not recovered:
            return
        await self._jobs.recover(recovered)
        for job_id in recovered:
            self._parked.pop(job_id, None)
            _log.info("a job has recovered", action="job_recovered", job_id=job_id)

    def harms(self, request: Request) -> bool:
        """Note that a rule fails over a command; whether it does over commands of another type of the job as well.

        One command is the command's fault, and set aside. Two of different types are the fault of the job.
        """
        types = self._harmed.setdefault(request.job_id, set())
        types.add(type(request.command))
        return len(types) > 1

    async def keep(self, items: Sequence[Admitted]) -> None:
        """Settle commands of a parked job: their senders keep them, or the broker does, until they come again.

        They go to the broker in their order, and its confirmations are waited for together. Where it takes none for
        10 s, their senders keep them, as far as they still wait for a reply: unsettled, they would fill the prefetch.
        """
        waiting = list(items)
        since_s = self._clock()
        while waiting:
            turn = list({one.request.command_id: one for one in waiting}.values())  # copies wait for one another
            async with asyncio.TaskGroup() as group:
                is_too_long = self._clock() - since_s > LONGEST_HOLD_S
                tasks = [group.create_task(self._keep_one(one, is_too_long=is_too_long)) for one in turn]
            settled = {id(one) for one, task in zip(turn, tasks, strict=True) if task.result()}
            waiting = [one for one in waiting if id(one) not in settled]
            if len(settled) < len(turn):
                await asyncio.sleep(_SOON_S)  # handing them back would count as a failed delivery

    async def _keep_one(self, one: Admitted, *, is_too_long: bool) -> bool:
        """Whether a command is settled now."""
        pause_s = max(_SOON_S, self.pause_s(one.request.job_id))
        is_awaited = one.sender.reply_to is not None and not one.delivery.parked_s
        if not isinstance(one.request.command, FACTS) or (is_too_long and is_awaited):
            parked = self._parked.get(one.request.job_id)
            advice = "" if parked is None else parked.advice
            await self._settlement.decline(one, retry_after_s=pause_s, advice=advice)
        elif one.delivery.parked_s >= self._limit_s:
            await self._settlement.give_up(one, reason=f"park_limit: its job was in trouble for {self._limit_s:g} s")
        else:
            return await self._keep_at_broker(one, pause_s)
        return True

    async def _keep_at_broker(self, one: Admitted, pause_s: float) -> bool:
        kept = self._parked[one.request.job_id].kept if one.request.job_id in self._parked else {}
        now_s, command_id = self._clock(), one.request.command_id
        while kept and next(iter(kept.values())) <= now_s:  # one that stays longer may hide a few that are back already
            del kept[next(iter(kept))]
        is_copy = kept.get(command_id, 0.0) > now_s and not one.delivery.parked_s
        if not await self._settlement.keep(one, pause_s=pause_s, is_copy=is_copy):
            return False
        if not is_copy:
            kept[command_id] = now_s + PARKED_FOR_S[parking_queue(pause_s)]
        return True


def remedy(job_id: str, error: Exception) -> str:
    """What an operator can do about a job in trouble."""
    if isinstance(error, StateTooNew):
        return (
            f"upgrade the workers if a newer release has written it; else `bso replay verify {job_id}` says what is "
            f"damaged, and `bso replay rebuild {job_id}` repairs it from the log"
        )
    if isinstance(error, PolicyMissing):
        return "install the policy on every worker and restart it; those that have the policy go on with the job"
    if isinstance(error, JobDamaged):
        return f"`bso replay verify {job_id}` says what differs, `bso replay rebuild {job_id}` repairs it from the log"
    return "it is tried again by itself; if that does not help, look for what holds or harms the job's rows"
