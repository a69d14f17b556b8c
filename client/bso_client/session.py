"""The protocol between a training process and the optimizer: register, begin, resume, end. Implemented once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from bso.domain.commands import BeginTrial, Command, RenewLease, Request
from bso.domain.errors import BsoError, Misconfigured
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import JobSpec as WholeSpec
from bso.domain.learning_rate import LearningRate
from bso.domain.replies import LeaseRenewed, Problem, Registered, Reply, TrialBegun
from bso.domain.trial import Outcome
from bso_client.asking import ask
from bso_client.command_ids import new_command_id
from bso_client.energy.monitor import Monitor
from bso_client.errors import CannotResume, Refused, Unreachable, WrongOrder
from bso_client.going_alone import choose_alone
from bso_client.leases import keep_lease
from bso_client.meter import Meter
from bso_client.notes import Note
from bso_client.occasions import Occasion
from bso_client.outbox import Letter, Outbox
from bso_client.progress import Progress, progress_of
from bso_client.registration import Registration
from bso_client.resumption import resumption_of
from bso_client.run import REPORT_TIMEOUT_S, TrialRun
from bso_client.saved_state import SavedState
from bso_client.transports.transport import Transport

logger = logging.getLogger("bso")

_SILENT_S = 0.5  # closing takes longer than this only if nobody answers
_SLOW_S = 2.0  # a wait for a batch size that is longer than this gives notice


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a session behaves; what BatchSizeOptimizer's arguments say."""

    unreachable_timeout_s: float = 60.0
    on_unreachable: Literal["continue", "raise"] = "continue"
    samples_per_epoch: float | None = None
    learning_rate: LearningRate | None = None
    report_timeout_s: float = REPORT_TIMEOUT_S


class Session:
    """One process' dealings with the optimizer about one job. At most one training runs at a time."""

    def __init__(
        self,
        *,
        registration: Registration,
        recurrence_id: str | None,
        transport: Transport,
        hardware: HardwareKind,
        monitor: Monitor,
        options: Options,
    ) -> None:
        self.run: TrialRun | None = None
        self._registration = registration
        self._transport = transport
        self.hardware = hardware
        self._monitor = monitor
        self._options = options
        self._outbox = Outbox(transport)
        self._occasion = Occasion(recurrence_id)
        self._has_started = False
        self._renewing: asyncio.Task[None] | None = None

    @property
    def job_id(self) -> str | None:
        """The job's name; None before the registration if none was given."""
        return self._registration.job_id

    async def begin(self) -> TrialRun:
        """Begin the next trial: ask for its batch size, or choose it alone when nobody answers in time."""
        self._check_free()
        if self.run is not None:
            self.run.acknowledge_stop()
        self._occasion.next_trial()
        command_id = new_command_id()
        try:
            with self._noticing_slow_answers():
                progress = await self._begin_asked(command_id)
        except (Unreachable, Misconfigured) as error:
            progress = self._begin_alone(error, replaces=command_id)
        return self._run(progress, Meter(self._monitor))

    async def resume(self, state: SavedState) -> TrialRun:
        """Go on with a trial of an earlier process. Raises CannotResume if it has ended meanwhile."""
        self._check_free()
        self._occasion.next_trial()
        try:
            with self._noticing_slow_answers():
                progress = await self._resume_asked(state)
        except (Unreachable, Misconfigured) as error:
            progress = self._resume_alone(state, self._remembered_or_raise(error).spec)
        run = self._run(progress, Meter(self._monitor, before=state.consumed))
        run.is_resumable = True
        return run

    async def end_unstarted(self) -> None:
        """Call off a trial whose training never began."""
        if self.run is not None and not self.run.has_started:
            self.run.has_left = True
            await self.run.finish(Outcome.CANCELLED, "its training was never begun")

    async def close(self, *, timeout_s: float, reason: str, outcome: Outcome = Outcome.INTERRUPTED) -> None:
        """End the current trial, deliver what is left within the time, and let go of the connection."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        notice = loop.call_later(0.0 if self._outbox.is_away else _SILENT_S, self._report_what_waits, deadline)
        if self.run is not None:
            await self.run.finish(outcome, reason, timeout_s=timeout_s)
        await self._outbox.drained(timeout_s=max(0.0, deadline - loop.time()))
        notice.cancel()
        if self._renewing is not None:
            self._renewing.cancel()
        await self._outbox.close()
        await self._transport.close()
        self._has_started = False

    @contextmanager
    def _noticing_slow_answers(self) -> Iterator[None]:
        timeout_s = self._options.unreachable_timeout_s

        def give_notice() -> None:
            extra = {"action": "begin_waits", "job_id": self.job_id}
            logger.warning("the optimizer has not answered yet: waiting up to %g s for it", timeout_s, extra=extra)

        notice = asyncio.get_running_loop().call_later(_SLOW_S, give_notice)
        try:
            yield
        finally:
            notice.cancel()

    def _report_what_waits(self, deadline: float) -> None:
        left_s = deadline - asyncio.get_running_loop().time()
        if self._outbox.waiting and left_s > 0:
            logger.warning(
                "%d reports wait for the optimizer, which does not answer: closing waits for it for %.2g s",
                self._outbox.waiting,
                left_s,
                extra={"action": "closing_waits", "job_id": self.job_id, "letters": self._outbox.waiting},
            )

    def _check_free(self) -> None:
        run = self.run
        if run is None or run.progress.has_ended:
            return
        if not run.has_started:
            raise WrongOrder(
                "the batch size of this trial was given already: the training comes next (on_train_begin, or "
                "`with trial:` inside the loop)"
            )
        raise WrongOrder("a training is running: it has to end before the next batch size (leave its `with` block)")

    def _run(self, progress: Progress, meter: Meter) -> TrialRun:
        number = "(not registered yet)" if progress.trial_number is None else progress.trial_number
        extra = {
            "action": "trial_begun",
            "job_id": self.job_id,
            "trial_number": progress.trial_number,
            "batch_size": progress.batch_size,
        }
        logger.info("trial %s: batch size %d: %s", number, progress.batch_size, progress.reason, extra=extra)
        progress.learning_rate = self._options.learning_rate
        job_id = self.job_id or ""
        self.run = TrialRun(
            job_id=job_id,
            progress=progress,
            meter=meter,
            outbox=self._outbox,
            samples_per_epoch=self._options.samples_per_epoch,
            on_end=self._ended,
            report_timeout_s=self._options.report_timeout_s,
        )
        self._occasion.begun(progress)
        self._renewing = asyncio.create_task(keep_lease(self._transport, job_id, progress), name="bso lease")
        return self.run

    def _ended(self, progress: Progress) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        self._registration.learn(progress)

    async def _begin_asked(self, command_id: str) -> Progress:
        deadline = await self._ready()
        await self._register(deadline)
        command = BeginTrial(
            hardware=self.hardware,
            recurrence_id=self._occasion.recurrence_id,
            learning_rate=self._options.learning_rate,
        )
        request = Request(command_id=command_id, job_id=self.job_id or "", command=command)
        reply = await ask(self._transport, request, TrialBegun, deadline=deadline)
        self._registration.warn(reply.warnings)
        return progress_of(reply, self.hardware)

    async def _resume_asked(self, state: SavedState) -> Progress:
        deadline = await self._ready()
        spec = await self._register(deadline)
        if state.job_id != self.job_id:
            raise CannotResume(f"the state is one of job {state.job_id}, this is job {self.job_id}")
        if state.trial_number is None or state.trial_id is None:
            return self._resume_alone(state, spec)
        command = RenewLease(trial_number=state.trial_number, trial_id=state.trial_id, is_resumption=True)
        try:
            reply = await ask(self._transport, self._request(command), LeaseRenewed, deadline=deadline)
        except Refused as refused:
            raise CannotResume(
                f"trial {state.trial_number} cannot be resumed ({refused}): train anew, without load_state_dict"
            ) from refused
        progress = state.progress_under(spec)
        progress.recurrence_id, progress.resumption = reply.recurrence_id, resumption_of(reply, state.consumed)
        progress.bound, progress.lease_s = reply.bound, reply.lease_s
        progress.power_profile = reply.power_profile
        return progress

    async def _ready(self) -> float:
        """Connect, and deliver what earlier trials have left; returns the deadline for everything else."""
        timeout_s = self._options.unreachable_timeout_s
        deadline = asyncio.get_running_loop().time() + timeout_s
        if not self._has_started:
            await self._transport.start()
            self._has_started = True
        if not await self._outbox.drained(timeout_s=timeout_s):
            raise Unreachable(f"{self._outbox.waiting} reports of the last trial could not be delivered yet")
        return deadline

    async def _register(self, deadline: float) -> WholeSpec:
        if self._registration.whole is not None:
            return self._registration.whole
        request = self._request(self._registration.command)
        return self._registration.heed(await ask(self._transport, request, Registered, deadline=deadline))

    def _request(self, command: Command) -> Request:
        return Request(command_id=new_command_id(), job_id=self.job_id or "", command=command)

    def _begin_alone(self, error: BsoError, *, replaces: str) -> Progress:
        note = self._remembered_or_raise(error)
        batch_size, reason = choose_alone(note, self._occasion.failed)
        attempt = self._occasion.attempt
        progress = Progress(
            batch_size=batch_size,
            reason=reason,
            spec=note.spec,
            hardware=self.hardware,
            attempt=attempt,
            is_last_attempt=attempt >= note.spec.max_attempts,
        )
        self._register_later(progress, replaces=replaces)
        return progress

    def _resume_alone(self, state: SavedState, spec: WholeSpec) -> Progress:
        progress = state.progress_under(spec)
        if progress.trial_id is None:
            self._register_later(progress, replaces=None)
        return progress

    def _remembered_or_raise(self, error: BsoError) -> Note:
        if self._options.on_unreachable == "raise":
            raise error
        note = self._registration.remembered()
        if note is None and isinstance(error, Unreachable):
            words = f"{error} (this job was never registered from this state directory, so it cannot begin alone)"
            raise Unreachable(words) from error
        if note is None:
            raise error
        extra = {"action": "optimizer_away", "job_id": note.job_id}
        logger.warning("%s: the training goes on alone, and is registered later", error, extra=extra)
        self._outbox.expect_nobody()
        return note

    def _register_later(self, progress: Progress, *, replaces: str | None) -> None:
        if self._registration.whole is None:
            self._post(self._registration.command, self._heed_late_registration)
        command = BeginTrial(
            hardware=progress.hardware,
            recurrence_id=self._occasion.recurrence_id,
            batch_size=progress.batch_size,
            replaces=replaces,
            learning_rate=self._options.learning_rate,
        )

        def heed(reply: Reply) -> None:
            if isinstance(reply, TrialBegun):
                progress.begun(reply)
                self._registration.warn(reply.warnings)
                if self.run is not None and self.run.progress is progress:
                    self._occasion.recurrence_id = reply.recurrence_id
            elif isinstance(reply, Problem):
                progress.is_refused = True
                self._registration.warn((f"the trial could not be registered: {reply.title}: {reply.detail}",))

        self._post(command, heed)

    def _heed_late_registration(self, reply: Reply) -> None:
        if isinstance(reply, Registered):
            self._registration.heed(reply)
        elif isinstance(reply, Problem):
            self._registration.warn((f"the job could not be registered: {reply.title}: {reply.detail}",))

    def _post(self, command: Command, heed: Callable[[Reply], None]) -> None:
        self._outbox.post(Letter(job_id=self.job_id or "", command=lambda _letter: command, heed=heed, is_late=True))
