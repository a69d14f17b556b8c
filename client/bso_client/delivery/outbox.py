"""What a training sends, delivered in order: at once if possible, later if not.

Nothing is written while replies arrive. What has to wait is kept in the journal, for the case that this process ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from bso.domain.commands import BeginTrial, Command, Request
from bso.domain.errors import BsoError, Misconfigured, Retryable
from bso.domain.replies import KEPT, Problem, Reply, TrialBegun
from bso_client.delivery.journal import Journal, Kept
from bso_client.delivery.obstacle import AT_QUOTA, Obstacle, declined, obstacle_of
from bso_client.training.state import Identity, Message, TrainingState, addressed
from bso_client.transports.transport import Transport

logger = logging.getLogger("bso")

_BEGINNINGS = uuid.UUID("9a0c2f0e-3f0b-5b52-8a53-0d5a5f1f6a11")
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 15.0
_PATIENCE_S = 30.0  # for the reply to a letter that nobody waits for


def beginning_id(training: str) -> str:
    """The id of the command that registers the training with this key: sent again, it registers no second one."""
    return str(uuid.uuid5(_BEGINNINGS, training))


def new_command_id() -> str:
    """A fresh UUIDv7 (RFC 9562): ids sort by the time they were made."""
    milliseconds = time.time_ns() // 1_000_000
    random_bits = int.from_bytes(os.urandom(10))
    value = (milliseconds & (1 << 48) - 1) << 80 | random_bits
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


class Sender(Protocol):
    """Who sends, and receives the replies."""

    @property
    def state(self) -> TrainingState:
        """The training that it sends for."""
        ...

    def received(self, command: Command, reply: Reply) -> None:
        """Take a reply, in time or late."""
        ...


class Letter:
    """One message on its way. A late one is its message as it is when nobody waits for the reply: never judged.

    It keeps its command_id, so that an optimizer that got it in time and only could not answer answers as it did then.
    """

    def __init__(self, message: Message, sender: Sender) -> None:
        self.sender = sender
        self.is_late: bool = False
        self.timeout_s: float = _PATIENCE_S
        self.reply: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        self.is_kept: bool = False  # in the journal
        self._message = message
        is_beginning = isinstance(message.command, BeginTrial)
        self.command_id: str = beginning_id(sender.state.key) if is_beginning else new_command_id()

    def request(self, identity: Identity | None) -> Request | None:
        """The command as it stands now, for the trial with this identity; None: its trial is not registered."""
        command = addressed(self._message.late if self.is_late else self._message.command, identity)
        job_id = self.sender.state.job_id
        return None if command is None else Request(command_id=self.command_id, job_id=job_id, command=command)

    def kept(self, identity: Identity | None) -> Kept:
        """The letter for the journal: late, and with the identity of its trial if that is known."""
        state, command = self.sender.state, self._message.late
        command = addressed(command, identity) or command
        return Kept(
            training=state.key, request=Request(command_id=self.command_id, job_id=state.job_id, command=command)
        )

    def give_up_waiting(self) -> None:
        """From now on the letter is late."""
        self.is_late = True
        self.timeout_s = _PATIENCE_S
        self.settle(None)

    def settle(self, reply: Reply | None) -> None:
        """End the wait for the reply."""
        if not self.reply.done():
            self.reply.set_result(reply)


class Outbox:
    """Letters of one process. One at a time is on its way; the others wait for it.

    ``deliver_earlier`` delivers what ended processes have kept of a job: after an outage it goes first.
    """

    def __init__(
        self,
        transport: Transport,
        journal_of: Callable[[str], Journal],
        *,
        deliver_earlier: Callable[[str], Awaitable[None]],
    ) -> None:
        self._transport = transport
        self._journal_of = journal_of
        self._deliver_earlier = deliver_earlier
        self._journal: Journal | None = None
        self._journal_error = ""
        self._identities: dict[str, Identity] = {}  # of trainings that were registered late, by their keys
        self._letters: deque[Letter] = deque()
        self._task: asyncio.Task[None] | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        self.obstacle: Obstacle | None = None  # to deliveries; None: no failure since the last answer
        self.last_error: str = ""  # of those since the last answer
        self._failures = 0
        self._is_silent = False
        self._was_at_quota = False  # who is, is so again after the next letter: it is said once

    @property
    def waiting(self) -> int:
        """The number of letters that are not delivered yet."""
        return len(self._letters)

    @property
    def is_away(self) -> bool:
        """Whether the last attempt to deliver failed, or nobody has answered in time since the last answer."""
        return self._failures > 0 or self._is_silent

    def expect_nobody(self, obstacle: Obstacle) -> None:
        """Somebody else has met (and logged) an obstacle: until a letter is answered, hold up nobody for one."""
        self._is_silent = True
        self.obstacle = obstacle

    def post(self, message: Message, sender: Sender, *, timeout_s: float) -> Letter:
        """Deliver a message some time; ``sender`` receives the reply. One without a reply after so long is kept.

        That holds whether anybody waits for the reply or not.
        """
        letter = Letter(message, sender)
        self._letters.append(letter)
        self._drained.clear()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._deliver_all(), name="bso outbox")
        if self.is_away:
            self._keep_in_order()
        else:
            overdue = asyncio.get_running_loop().call_later(timeout_s, self._no_reply_in_time)
            letter.reply.add_done_callback(lambda _: overdue.cancel())
        return letter

    async def answer(self, letter: Letter, *, timeout_s: float) -> Reply | None:
        """Wait for the reply to a letter, which its sender has received then; None if it comes too late, or never."""
        letter.timeout_s = timeout_s
        if self.is_away:  # do not hold up a training for what has just failed
            letter.give_up_waiting()
            return None
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(letter.reply)
        except TimeoutError:
            letter.give_up_waiting()
            self._no_reply_in_time()
            return None

    async def drained(self, *, timeout_s: float) -> bool:
        """Wait until everything is delivered; False: it is not, in this time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._drained.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stop delivering. Letters that are left stay in the journal, and a warning says how many."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for letter in self._letters:
            self._keep(letter)  # also behind one that could not be kept: none comes after these
            letter.settle(None)
        self._say_what_is_left()
        self._letters.clear()
        self._drained.set()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    async def _deliver_all(self) -> None:
        while self._letters:
            letter = self._letters[0]
            try:
                if self.is_away:
                    await self._deliver_earlier(letter.sender.state.job_id)
                refusal = await self._attempt(letter)
            except (Retryable, Misconfigured) as error:
                letter.give_up_waiting()
                await self._pause(error)
                continue
            except BsoError as error:
                logger.warning("a report was given up: %s", error, extra={"action": "report_refused"})
                refusal = str(error)
            except Exception as error:  # a bug in one letter must not keep the others
                logger.exception("a report was given up", extra={"action": "report_failed"})
                refusal = f"{type(error).__name__}: {error}"
            self._came_through()
            self._letters.popleft()
            self._note_settled(letter, refusal)
            letter.settle(None)
        self._drained.set()

    async def _attempt(self, letter: Letter) -> str | None:
        """Why the optimizer does not take the letter; None: it has. Raises Retryable, Misconfigured: not now."""
        request = None if letter.sender.state.is_refused else letter.request(self._identity(letter))
        if request is None:
            return "its trial is not registered, or refused"
        reply = await self._transport.call(request, timeout_s=letter.timeout_s)
        if isinstance(reply, Problem) and reply.type == KEPT:
            logger.warning("%s: the training goes on without a judgement", reply.title, extra={"action": "report_kept"})
            return None  # it will be decided
        if isinstance(reply, Problem) and reply.is_retryable:
            raise declined(reply)
        if isinstance(reply, TrialBegun):
            self._identities[letter.sender.state.key] = (reply.trial_number, reply.trial_id)
        letter.sender.received(request.command, reply)
        letter.settle(reply)
        return f"{reply.type}: {reply.title}: {reply.detail}" if isinstance(reply, Problem) else None

    def _identity(self, letter: Letter) -> Identity | None:
        """The identity of a letter's trial. The sender may learn of a late registration only when its ranks meet."""
        state = letter.sender.state
        if state.trial_number is None or state.trial_id is None:
            return self._identities.get(state.key)
        return state.trial_number, state.trial_id

    async def _pause(self, error: BsoError) -> None:
        self._failures += 1
        self.last_error = str(error)
        self._keep_in_order()
        obstacle = obstacle_of(error)
        if obstacle != self.obstacle and not (obstacle is AT_QUOTA and self._was_at_quota):
            goes_on = "" if self._letters[-1].sender.state.has_ended else "the training goes on, "
            where = "" if self._letters[-1].is_kept else " in memory"
            words = "the optimizer %s (%s): %sits reports are kept%s, and delivered %s"
            facts = (obstacle.words, error, goes_on, where, obstacle.until)
            logger.warning(words, *facts, extra={"action": obstacle.action})
        self.obstacle = obstacle
        self._was_at_quota |= obstacle is AT_QUOTA
        await asyncio.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 10)))

    def _no_reply_in_time(self) -> None:
        self._is_silent = True
        self._keep_in_order()

    def _keep_in_order(self) -> None:
        """Write the letters to the journal, none before an older one: the next process delivers them in that order.

        Those behind one that cannot be written are tried again with the next letter, or attempt to deliver.
        """
        for letter in self._letters:
            self._keep(letter)
            if not letter.is_kept:
                return

    def _keep(self, letter: Letter) -> None:
        """Write a letter to the journal; where that fails, it is kept in memory, as long as the process lives."""
        if letter.is_kept:
            return
        try:
            kept = letter.kept(self._identity(letter))
            if self._journal is None:
                self._journal = self._journal_of(kept.request.job_id)
            self._journal.keep(kept)
        except Exception as error:  # noqa: BLE001  # whatever a disk has, no training ends of it
            if not self._journal_error:
                words = "reports cannot be kept on disk (%s: %s): what is not delivered when this process ends is lost"
                logger.warning(words, type(error).__name__, error, extra={"action": "journal_failed"})
            self._journal_error = f"{type(error).__name__}: {error}"
        else:
            letter.is_kept = letter.is_late = True

    def _note_settled(self, letter: Letter, refusal: str | None) -> None:
        """Note in the journal that a letter is delivered, or why the optimizer refuses it."""
        if self._journal is None or not letter.is_kept:
            return
        try:
            identity = self._identity(letter)
            if identity is not None:
                self._journal.identified(letter.sender.state.key, *identity)
            if refusal is None:
                self._journal.delivered(letter.command_id)
            else:
                self._journal.set_aside(letter.kept(identity), refusal)
        except Exception as error:  # noqa: BLE001  # it is delivered once more, under the same command_id
            logger.debug("the journal was not written: %r", error, extra={"action": "journal_failed"})

    def _say_what_is_left(self) -> None:
        lost = sum(not letter.is_kept for letter in self._letters)
        kept = len(self._letters) - lost
        if kept and self._journal is not None:
            logger.warning(
                "%d reports could not be delivered: they are kept in %s for %s; the next training of this job there "
                "delivers them (or `bso journal flush`)",
                *(kept, self._journal.folder, self._journal.destination.address),
                extra={"action": "reports_kept", "letters": kept},
            )
        if lost:
            logger.warning(
                "%d reports could not be delivered%s, nor kept on disk (%s): they are lost",
                *(lost, f" ({self.last_error})" if self.last_error else "", self._journal_error),
                extra={"action": "reports_lost", "letters": lost},
            )

    def _came_through(self) -> None:
        if self._failures and self.obstacle is not AT_QUOTA:
            logger.warning("the optimizer is back", extra={"action": "optimizer_back"})
        self._failures, self.obstacle, self._is_silent, self.last_error = 0, None, False, ""
