"""One process' dealings with the optimizer about one job: register, begin, resume, close. Of all ranks, rank 0's."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from bso.domain.commands import BeginTrial, Command, DescribeJob, RenewLease, Request
from bso.domain.errors import BsoError, Misconfigured
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import JobSpec as WholeSpec
from bso.domain.learning_rate import LearningRate
from bso.domain.replies import JobDescription, LeaseRenewed, Registered, TrialBegun
from bso_client.delivery.journal import Destination, Journal, folder_of
from bso_client.delivery.lease import keep_lease
from bso_client.delivery.logged import LoggedTransport
from bso_client.delivery.obstacle import AWAY, REFUSED, obstacle_of
from bso_client.delivery.outbox import Outbox, Sender, beginning_id, new_command_id
from bso_client.delivery.retries import ask
from bso_client.errors import CannotResume, Refused, Unreachable
from bso_client.notes import Note, how_ended
from bso_client.registration import Registration
from bso_client.training.recurrence import choose_alone, first_recurrence
from bso_client.training.start import begun, begun_alone, late_beginning, registered, resumed
from bso_client.training.state import Step, TrainingState
from bso_client.transports.transport import Transport

logger = logging.getLogger("bso")

_SILENT_S = 0.5  # closing takes longer than this only if nobody answers
_WHY_ASIDE = " (`bso journal list` says why)"
_SLOW_S = 2.0  # a wait for a batch size that is longer than this gives notice


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How long to wait for a batch size, and what to do then."""

    unreachable_timeout_s: float = 60.0
    on_unreachable: Literal["continue", "raise"] = "continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Journals:
    """The journals of this optimizer's jobs."""

    state_dir: Path
    destination: Destination

    def of(self, job_id: str) -> Journal:
        """This process' journal of a job."""
        return Journal(self.state_dir, self.destination, job_id)

    def folder(self, job_id: str) -> Path:
        """The folder of a job's journal."""
        return folder_of(self.state_dir, self.destination, job_id)


class Contact:
    """Asks for trials, and goes on alone where nobody answers. ``outbox`` delivers what their trainings send."""

    def __init__(
        self,
        *,
        registration: Registration,
        recurrence_id: str | None,
        transport: Transport,
        waiting: Waiting,
        learning_rate: LearningRate | None,
        journals: Journals,
    ) -> None:
        self.outbox = Outbox(transport, journals.of, deliver_earlier=self._deliver_earlier)
        self._journals = journals
        self._registration = registration
        self._transport = transport
        self._log = transport if isinstance(transport, LoggedTransport) else None
        self._waiting = waiting
        self._learning_rate = learning_rate
        self._recurrence = first_recurrence(recurrence_id)
        self._current: Sender | None = None
        self._has_started = False
        self._is_delivering = False  # what earlier trainings have left
        self._renewing: asyncio.Task[None] | None = None

    @property
    def job_id(self) -> str | None:
        """The job's name; None before the registration if none was given."""
        return self._registration.job_id

    async def begin(self, hardware: HardwareKind) -> Step:
        """The beginning of the next trial: asked for, or chosen alone when nobody answers in time.

        Raises Unreachable, Refused, SpecConflict, Misconfigured.
        """
        self._next_trial()
        command_id = new_command_id()
        try:
            with self._noticing_slow_answers():
                return await self._begin_asked(hardware, command_id)
        except (Unreachable, Misconfigured) as error:
            return self._begin_alone(hardware, error, replaces=command_id)

    async def resume(self, saved: TrainingState) -> Step:
        """Go on with a trial of an earlier process. Raises CannotResume if it has ended meanwhile."""
        self._next_trial()
        self._check_job(saved)
        how = self._registration.how_ended(saved) if saved.may_be_resumed else how_ended(saved)
        if how is not None:
            raise CannotResume(
                f"{saved.name} cannot be resumed (it ended as {how}): train anew, without load_state_dict"
            )
        try:
            with self._noticing_slow_answers():
                return await self._resume_asked(saved)
        except (Unreachable, Misconfigured) as error:
            spec = self._remembered_or_raise(error).spec
            _check_identity(saved, spec)
            return self._resumed(saved, spec, None)

    async def describe(self, *, timeout_s: float) -> JobDescription | None:
        """The job as the optimizer knows it; None where it does not answer in time, or was not asked for it yet."""
        if not self._has_started or self._registration.whole is None:
            return None
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            return await ask(self._transport, self._request(DescribeJob()), JobDescription, deadline=deadline)
        except BsoError:
            return None

    def follow(self, training: Sender) -> None:
        """Renew the lease of a training until it has ended."""
        self._current = training
        self._renewing = asyncio.create_task(keep_lease(self._transport, training), name="bso lease")

    def ended(self, state: TrainingState) -> None:
        """A training has ended: its lease is no longer renewed, and its result is noted."""
        if self._renewing is not None:
            self._renewing.cancel()
        if state.attempt > 1:
            self._recurrence = self._registration.gone_on_with(self._recurrence)
        self._registration.learn(state, self._recurrence.after(state))
        if self._log is not None:
            self._log.ended(state, beginning_id(state.key))

    @contextmanager
    def closing(self, *, timeout_s: float) -> Iterator[None]:
        """Give notice where closing has to wait for the optimizer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        notice = loop.call_later(0.0 if self.outbox.is_away else _SILENT_S, self._report_what_waits, deadline)
        try:
            yield
        finally:
            notice.cancel()

    async def close(self, *, timeout_s: float) -> None:
        """Deliver what is left within the time, and let go of the connection. Cancelled, it keeps what is left."""
        try:
            await self.outbox.drained(timeout_s=timeout_s)
        finally:
            if self._renewing is not None:
                self._renewing.cancel()
            await self.outbox.close()
            await self._transport.close()
            self._has_started = False

    def _next_trial(self) -> None:
        last, self._current = self._current, None
        self._recurrence = self._recurrence.after(None if last is None else last.state)

    @contextmanager
    def _noticing_slow_answers(self) -> Iterator[None]:
        timeout_s = self._waiting.unreachable_timeout_s

        def give_notice() -> None:
            extra = {"action": "begin_waits", "job_id": self.job_id}
            if self._is_delivering:
                logger.warning("the reports of earlier trainings are delivered first", extra=extra)
            elif not self._has_started and self._journals.destination.address.startswith("sqlite:"):
                address = self._journals.destination.address
                logger.warning("%s is being opened; where it is new, it is made first", address, extra=extra)
            else:
                logger.warning("the optimizer has not answered yet: waiting up to %g s for it", timeout_s, extra=extra)

        notice = asyncio.get_running_loop().call_later(_SLOW_S, give_notice)
        try:
            yield
        finally:
            notice.cancel()

    def _report_what_waits(self, deadline: float) -> None:
        left_s = deadline - asyncio.get_running_loop().time()
        if self.outbox.waiting and left_s > 0:
            obstacle = self.outbox.obstacle
            why = "does not answer" if obstacle is None or obstacle is AWAY else obstacle.words
            why += f" ({self.outbox.last_error})" if self.outbox.last_error else ""
            where = f"not delivered, since the optimizer {why}" if self.outbox.is_away else "still being delivered"
            logger.warning(
                "%d reports are %s: closing waits up to %.3g s; Ctrl-C ends the wait",
                *(self.outbox.waiting, where, left_s),
                extra={"action": "closing_waits", "job_id": self.job_id, "letters": self.outbox.waiting},
            )

    async def _begin_asked(self, hardware: HardwareKind, command_id: str) -> Step:
        deadline = await self._ready()
        await self._register(deadline)
        command = BeginTrial(
            hardware=hardware, recurrence_id=self._recurrence.recurrence_id, learning_rate=self._learning_rate
        )
        request = Request(command_id=command_id, job_id=self.job_id or "", command=command)
        reply = await ask(self._transport, request, TrialBegun, deadline=deadline)
        self._registration.warn(reply.warnings)
        return begun(
            reply, job_id=self.job_id or "", key=_new_key(), hardware=hardware, learning_rate=self._learning_rate
        )

    async def _resume_asked(self, saved: TrainingState) -> Step:
        deadline = await self._ready()
        spec = await self._register(deadline)
        self._check_job(saved)
        _check_identity(saved, spec)
        try:
            saved = await self._identified(saved, deadline)
            command = RenewLease(
                trial_number=saved.trial_number or 0, trial_id=saved.trial_id or "", is_resumption=True
            )
            reply = await ask(self._transport, self._request(command), LeaseRenewed, deadline=deadline)
        except Refused as refused:
            raise CannotResume(
                f"{saved.name} cannot be resumed ({refused}): train anew, without load_state_dict"
            ) from refused
        return self._resumed(saved, spec, reply)

    async def _identified(self, saved: TrainingState, deadline: float) -> TrainingState:
        """The training with the number of its trial, which may have been registered after its checkpoint, or is now."""
        if saved.trial_id is not None:
            return saved
        command = late_beginning(saved, self._recurrence.recurrence_id)
        request = Request(command_id=beginning_id(saved.key), job_id=saved.job_id, command=command)
        return registered(saved, await ask(self._transport, request, TrialBegun, deadline=deadline))

    def _check_job(self, saved: TrainingState) -> None:
        if self.job_id not in (None, saved.job_id):
            raise CannotResume(f"this state belongs to job {saved.job_id}, not to job {self.job_id}")

    async def _ready(self) -> float:
        """Connect, and deliver what earlier trials have left; returns the deadline for everything else."""
        timeout_s = self._waiting.unreachable_timeout_s
        if not self._has_started:
            await self._transport.start()
            self._has_started = True
        waiting = self.outbox.waiting
        while not await self.outbox.drained(timeout_s=timeout_s):
            if self.outbox.waiting < waiting:  # answers come, one after the other
                waiting = self.outbox.waiting
                continue
            words = f"{self.outbox.waiting} reports of this process could not be delivered yet"
            why = f" ({self.outbox.last_error})" if self.outbox.last_error else ""
            if self.outbox.obstacle is REFUSED:
                raise Misconfigured(f"{words}, since the optimizer {REFUSED.words}{why}")
            raise Unreachable(f"{words}{why}")
        if self.job_id is not None:
            await self._deliver_earlier(self.job_id)
        return asyncio.get_running_loop().time() + timeout_s

    async def _deliver_earlier(self, job_id: str) -> None:
        """Deliver what ended processes have left of this job, for as long as answers come.

        Raises Unreachable, Misconfigured.
        """
        folder = self._journals.folder(job_id)
        if not folder.exists():
            return
        from bso_client.delivery.flush import flush

        def is_going_on() -> None:
            self._is_delivering = True

        transport = self._transport if self._log is None else self._log.unlogged
        timeout_s = self._waiting.unreachable_timeout_s
        try:
            flushed = await flush(folder, transport, timeout_s=timeout_s, progress=is_going_on)
        except OSError as error:  # whatever a disk has, no training ends of it
            words = "what earlier trainings have kept in %s cannot be delivered (%s: %s)"
            logger.warning(words, folder, type(error).__name__, error, extra={"action": "journal_failed"})
            return
        finally:
            self._is_delivering = False
        if flushed.delivered or flushed.set_aside:
            logger.log(
                logging.WARNING if flushed.set_aside else logging.INFO,
                "%d reports of earlier trainings were delivered, %d refused and set aside in %s%s",
                *(flushed.delivered, flushed.set_aside, folder, _WHY_ASIDE if flushed.set_aside else ""),
                extra={"action": "journal_flushed", "job_id": job_id},
            )
        if isinstance(flushed.obstacle, Misconfigured):
            raise flushed.obstacle
        if isinstance(flushed.obstacle, Unreachable):
            raise flushed.obstacle
        if flushed.obstacle is not None:
            raise Unreachable(str(flushed.obstacle)) from flushed.obstacle

    async def _register(self, deadline: float) -> WholeSpec:
        if self._registration.whole is not None:
            return self._registration.whole
        request = self._request(self._registration.command)
        return self._registration.registered(await ask(self._transport, request, Registered, deadline=deadline))

    def _request(self, command: Command) -> Request:
        return Request(command_id=new_command_id(), job_id=self.job_id or "", command=command)

    def _begin_alone(self, hardware: HardwareKind, error: BsoError, *, replaces: str) -> Step:
        note = self._remembered_or_raise(error)
        self._recurrence = self._registration.gone_on_with(self._recurrence)
        step = begun_alone(
            job_id=note.job_id,
            key=_new_key(),
            choice=choose_alone(
                note.spec,
                note.best_batch_size,
                self._recurrence.failed,
                why=f"the optimizer {obstacle_of(error).words}",
            ),
            spec=note.spec,
            hardware=hardware,
            attempt=self._recurrence.attempt,
            recurrence_id=self._recurrence.recurrence_id,
            learning_rate=self._learning_rate,
            replaces=replaces,
            registers=self._registration.late_command,
        )
        if self._log is not None:
            self._log.begun_alone(step.state, beginning_id(step.state.key))
        return step

    def _resumed(self, saved: TrainingState, spec: WholeSpec, reply: LeaseRenewed | None) -> Step:
        step = resumed(
            saved,
            spec=spec,
            reply=reply,
            recurrence_id=self._recurrence.recurrence_id,
            learning_rate=self._learning_rate,
            registers=self._registration.late_command,
        )
        if self._log is not None:
            self._log.resumed(step.state, beginning_id(step.state.key))
        return step

    def _remembered_or_raise(self, error: BsoError) -> Note:
        if self._waiting.on_unreachable == "raise":
            raise error
        note = self._registration.remembered()
        if note is None and isinstance(error, Unreachable):
            words = "this job was never registered from this state directory, so it cannot begin without the optimizer"
            raise Unreachable(f"{error} ({words})") from error
        if note is None:
            raise error
        obstacle = obstacle_of(error)
        extra = {"action": obstacle.action, "job_id": note.job_id}
        logger.warning("%s: the training goes on alone, and is registered %s", error, obstacle.until, extra=extra)
        self.outbox.expect_nobody(obstacle)
        return note


def _check_identity(saved: TrainingState, spec: WholeSpec) -> None:
    """Raise CannotResume where the script now asks for something else: results under both are not comparable."""
    before, now = asdict(saved.spec.identity), asdict(spec.identity)
    changed = [f"{name} {before[name]!r}, now {now[name]!r}" for name in before if before[name] != now[name]]
    if changed:
        raise CannotResume(
            f"{saved.name} cannot be resumed (it began with {', and '.join(changed)}): train anew, without "
            "load_state_dict"
        )


def _new_key() -> str:
    return uuid.uuid4().hex
