"""The process of rank 0, as the others watch it: when it has died, one of them reports that."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bso.domain.commands import FinishTrial, Request
from bso.domain.errors import BsoError
from bso.domain.replies import KEPT, Problem
from bso.domain.trial import Outcome
from bso_client.delivery.journal import Journal, Kept
from bso_client.delivery.obstacle import declined
from bso_client.delivery.outbox import beginning_id
from bso_client.distributed.devices import machine_name
from bso_client.training.start import late_beginning
from bso_client.training.state import Consumption, TrainingState
from bso_client.transports.transport import Transport

logger = logging.getLogger("bso")

_PROCESSES = Path("/proc/self/ns/pid")
_NAMESPACE = uuid.UUID("5b1c4f2e-6f0d-5d7c-9f55-1d6f9c1e0b57")
_LOOKS, _PAUSE_S = 10, 0.05  # a killed process' connections end a moment before it does
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """Where the process of rank 0 is."""

    pid: int
    processes: str  # the table of processes in which it has this number


def this_process() -> Leader:
    """This process, as others can find it."""
    try:
        namespace = str(_PROCESSES.readlink())
    except OSError:
        namespace = ""
    return Leader(pid=os.getpid(), processes=f"{machine_name()} {namespace}")


class LeaderWatch:
    """Knows whether rank 0's process has died. Of one on another machine, or in another container, it never knows."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self._handle: int | None = None
        if leader.processes == this_process().processes and hasattr(os, "pidfd_open"):
            try:
                self._handle = os.pidfd_open(leader.pid)
            except OSError as error:
                logger.debug("rank 0 cannot be watched: %s", error, extra={"action": "leader_unwatched"})

    @property
    def has_died(self) -> bool:
        """Whether it has died for sure."""
        return self._handle is not None and bool(select.select([self._handle], [], [], 0)[0])

    async def has_died_soon(self) -> bool:
        """Whether it has died, or does so within half a second."""
        for _ in range(_LOOKS):
            if self.has_died or self._handle is None:
                break
            await asyncio.sleep(_PAUSE_S)
        return self.has_died

    def close(self) -> None:
        """Stop watching."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWords:
    """The end of a trial whose rank 0 has died, as this rank knows it."""

    state: TrainingState
    consumed: Consumption

    def request(self, leader: Leader) -> Request:
        """The command; every survivor makes the same one, under the same id, which nobody else can know before."""
        state = self.state
        reason = state.outcome_reason
        if state.outcome is not Outcome.INFEASIBLE:
            reason = f"the process of rank 0 has died ({reason})"
        command = FinishTrial(
            trial_number=state.trial_number or 0,
            trial_id=state.trial_id or "",
            outcome=state.outcome or Outcome.INTERRUPTED,
            reason=reason,
            time_s=self.consumed.time_s,
            energy_j=self.consumed.energy_j,
            may_resume=state.is_resumable,
        )
        whose = f"{state.key} {leader.processes} {leader.pid}"
        return Request(command_id=str(uuid.uuid5(_NAMESPACE, whose)), job_id=state.job_id, command=command)


def make_ready(open_transport: Callable[[], Transport]) -> None:
    """Load in the background what say_for needs: once rank 0 has died, its survivors soon receive SIGTERM, too."""
    threading.Thread(target=open_transport, name="bso last words", daemon=True).start()


async def say_for(
    leader: Leader, words: LastWords, open_transport: Callable[[], Transport], journal_of: Callable[[str], Journal]
) -> None:
    """Report how a trial ended whose rank 0 cannot. It is in the journal until it is delivered: SIGTERM may be next."""
    if words.state.is_refused:
        return
    request = words.request(leader)
    journal = journal_of(request.job_id)
    obstacle = _keep(request, words.state, journal)
    if words.state.trial_id is None:  # it began alone: rank 0's journal registers it first, and this once more
        journal.close()
        _warn(journal, "it is not registered yet", obstacle)
        return
    transport = open_transport()
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await transport.start()
            reply = await transport.call(request, timeout_s=_TIMEOUT_S)
        if isinstance(reply, Problem) and reply.is_retryable and reply.type != KEPT:
            raise declined(reply)
    except (BsoError, TimeoutError) as error:
        _warn(journal, str(error) or "no reply", obstacle)
    else:
        with contextlib.suppress(OSError):  # it is delivered once more, under the same command_id
            journal.delivered(request.command_id)
    finally:
        journal.close()
        await transport.close()


def _keep(request: Request, state: TrainingState, journal: Journal) -> Exception | None:
    """Keep it in the journal, after what registers its trial; what prevents that, if anything does."""
    assert isinstance(request.command, FinishTrial)
    late = [replace(request, command=replace(request.command, is_journalled=True))]
    if state.trial_id is None:
        beginning = late_beginning(state, state.recurrence_id)
        late.insert(0, Request(command_id=beginning_id(state.key), job_id=state.job_id, command=beginning))
    try:
        for each in late:
            journal.keep(Kept(training=state.key, request=each))
    except Exception as error:  # noqa: BLE001  # whatever a disk has
        return error
    return None


def _warn(journal: Journal, why: str, obstacle: Exception | None) -> None:
    if obstacle is None:
        words = "rank 0 has died; how its trial ended is kept in %s, and delivered later (%s)"
        logger.warning(words, journal.folder, why, extra={"action": "reports_kept"})
    else:
        words = "rank 0 has died, and how its trial ended is lost (%s; %s)"
        logger.warning(words, why, obstacle, extra={"action": "last_words_lost"})
