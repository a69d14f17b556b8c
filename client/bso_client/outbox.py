"""What a training has to say, delivered in order: at once if possible, later if not.

Letters are kept in memory. Whatever keeps them on disk, for the next process to deliver, belongs behind Outbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from bso.domain.commands import Command, Request
from bso.domain.errors import BsoError, Misconfigured, Retryable
from bso.domain.replies import KEPT, Problem, Reply
from bso_client.command_ids import new_command_id
from bso_client.errors import Unreachable
from bso_client.transports.transport import Transport

logger = logging.getLogger("bso")

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 15.0
_PATIENCE_S = 30.0  # for the answer to a letter that nobody waits for


class Letter:
    """One command on its way. ``command`` makes it, knowing whether the letter ``is_late``; None drops the letter.

    A late letter tells what happened meanwhile: its sender no longer waits for a judgement. It keeps its command_id,
    so that an optimizer that got it in time and only could not answer answers as it did then.
    """

    def __init__(
        self,
        *,
        job_id: str,
        command: Callable[[Letter], Command | None],
        heed: Callable[[Reply], None],
        is_late: bool = False,
    ) -> None:
        self.heed = heed
        self.is_late = is_late
        self.timeout_s = _PATIENCE_S
        self.reply: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        self._job_id = job_id
        self._command = command
        self._command_id = new_command_id()

    def request(self) -> Request | None:
        """The command as it stands now."""
        command = self._command(self)
        return None if command is None else Request(command_id=self._command_id, job_id=self._job_id, command=command)

    def give_up_waiting(self) -> None:
        """From now on the letter is late."""
        self.is_late = True
        self.timeout_s = _PATIENCE_S
        self.settle(None)

    def settle(self, reply: Reply | None) -> None:
        """Wake whoever waits for the reply."""
        if not self.reply.done():
            self.reply.set_result(reply)


class Outbox:
    """Delivers letters one after the other and never raises; the optimizer's absence only makes them late."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._letters: deque[Letter] = deque()
        self._task: asyncio.Task[None] | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        self._failures = 0
        self._is_silent = False

    @property
    def waiting(self) -> int:
        """The number of letters that are not delivered yet."""
        return len(self._letters)

    @property
    def is_away(self) -> bool:
        """Whether the last attempt to deliver failed, or nobody has answered in time since the last answer."""
        return self._failures > 0 or self._is_silent

    def expect_nobody(self) -> None:
        """Somebody else found nobody there: until a letter is answered, hold up nobody for the answer to one."""
        self._is_silent = True

    def post(self, letter: Letter) -> None:
        """Deliver a letter some time."""
        self._letters.append(letter)
        self._drained.clear()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._deliver_all(), name="bso outbox")

    async def deliver(self, letter: Letter, *, timeout_s: float) -> Reply | None:
        """Deliver a letter now, and return the reply; None if it comes too late, or never."""
        letter.timeout_s = timeout_s
        self.post(letter)
        if self.is_away:  # do not hold up a training for what has just failed
            letter.give_up_waiting()
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(letter.reply)
        except TimeoutError:
            letter.give_up_waiting()
            self._is_silent = True
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
        """Stop delivering. Letters that are left are lost, and a warning says how many."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._letters:
            extra = {"action": "reports_lost", "letters": len(self._letters)}
            logger.warning("%d reports could not be delivered and are lost", len(self._letters), extra=extra)
        for letter in self._letters:
            letter.settle(None)
        self._letters.clear()
        self._drained.set()

    async def _deliver_all(self) -> None:
        while self._letters:
            letter = self._letters[0]
            try:
                reply = await self._attempt(letter)
            except (Retryable, Misconfigured) as error:
                letter.give_up_waiting()
                await self._pause(error)
                continue
            except BsoError as error:
                logger.warning("a report was given up: %s", error, extra={"action": "report_refused"})
                reply = None
            except Exception:
                logger.exception("a report was given up", extra={"action": "report_failed"})
                reply = None
            self._came_through()
            self._letters.popleft()
            letter.settle(reply)
        self._drained.set()

    async def _attempt(self, letter: Letter) -> Reply | None:
        request = letter.request()
        if request is None:
            return None
        reply = await self._transport.call(request, timeout_s=letter.timeout_s)
        if isinstance(reply, Problem) and reply.type == KEPT:
            logger.warning("%s: the training goes on without a judgement", reply.title, extra={"action": "report_kept"})
            return None  # it will be decided, and was delivered
        if isinstance(reply, Problem) and reply.is_retryable:
            raise Unreachable(f"{reply.title}: {reply.detail}")
        letter.heed(reply)
        return reply

    async def _pause(self, error: BsoError) -> None:
        self._failures += 1
        if self._failures == 1:
            logger.warning(
                "the optimizer is out of reach (%s): the training goes on, its reports are kept and delivered later",
                error,
                extra={"action": "optimizer_away"},
            )
        await asyncio.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 10)))

    def _came_through(self) -> None:
        if self._failures:
            logger.info("the optimizer is back", extra={"action": "optimizer_back"})
        self._failures, self._is_silent = 0, False
