"""The engine: batches of commands, each decided and recorded in one transaction, exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from bso.domain.commands import Request
from bso.domain.decide import Rules, decide
from bso.domain.errors import Retryable
from bso.domain.identifiers import address_problems
from bso.service.answers import Answer, Undecided, misaddressed, poisoned
from bso.service.batch import Batches
from bso.service.errors import (
    Conflict,
    DecidingTimedOut,
    JobDamaged,
    OutOfTime,
    SequenceTaken,
    StoreLost,
    StoreRefused,
    StoreTimedOut,
    Unstorable,
)
from bso.service.log_epochs import LogWatch
from bso.service.ports import Decide, OptimisticStore, UnitsOfWork

_DEFAULT_RULES = Rules()
_Found = TypeVar("_Found", bound=Answer | Undecided)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the engine tries. ``attempt_s`` bounds one transaction, with all its waits for locks.

    ``deciding_s`` bounds the deciding within one transaction, in which the jobs are locked; the rest goes into another.
    """

    attempt_s: float = 20.0
    deciding_s: float = 0.1
    attempts: int = 10
    total_s: float = 30.0
    longest_pause_s: float = 1.0


_DEFAULT_PATIENCE = Patience()


class Engine:
    """Decides commands against a store. Any number of engines may share one store, in any number of processes.

    With a ``watch`` nothing is decided in a store that holds an older state of the log than before. ``optimistic``, the
    same store, lets attempts decide without reading, as long as nobody else decides on the same jobs.
    """

    def __init__(
        self,
        store: UnitsOfWork,
        rules: Rules = _DEFAULT_RULES,
        *,
        patience: Patience = _DEFAULT_PATIENCE,
        rule: Decide = decide,
        on_retry: Callable[[], None] = lambda: None,
        watch: LogWatch | None = None,
        optimistic: OptimisticStore | None = None,
    ) -> None:
        self._store = store
        self._patience = patience
        self._on_retry = on_retry
        self._batches = Batches(
            rules=rules, decide=rule, budget_s=patience.deciding_s, watch=watch, optimistic=optimistic
        )

    async def execute(self, requests: Sequence[Request]) -> list[Answer]:
        """Decide requests, in one transaction if they take no longer; the answers come in the order of the requests.

        A request that was decided before, here or elsewhere, gets the reply it got then. One that can never be
        decided becomes an answer with ``poison``, and the others are unharmed. Raises Retryable or Misconfigured when
        the store is away, or the policy of a job is not installed here (PolicyMissing): nothing has happened, or the
        outcome is unknown; send the same command_ids again.
        """
        return await _answered(requests, self._decided)

    async def attempt(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
        """Decide requests in one transaction, once, without those whose jobs another transaction holds.

        Those of a job that cannot be read, or whose policy is not installed here, are not decided either, nor those
        for which the time does not suffice.
        Whatever else goes wrong is raised, and concerns all of them: nothing has happened, or the outcome is unknown.
        """
        return await _answered(requests, self._attempted)

    async def _attempted(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
        return await self._in_time(self._batches.attempt(self._store, requests))

    async def _decided(self, requests: Sequence[Request]) -> list[Answer]:
        """All at once, or one by one where that fails for a reason that may lie in one of them."""
        try:
            return await self._persistently(requests)
        except Unstorable as error:
            if len(requests) == 1:
                return [poisoned(requests[0], str(error))]
        except StoreRefused:
            if len(requests) == 1:
                raise
        return [answer for request in requests for answer in await self._decided([request])]

    async def _persistently(self, requests: Sequence[Request]) -> list[Answer]:
        patience = self._patience
        retrying = AsyncRetrying(
            retry=retry_if_exception_type((Conflict, StoreLost)),
            stop=stop_after_attempt(patience.attempts) | stop_after_delay(patience.total_s),
            wait=wait_random_exponential(multiplier=0.02, max=patience.longest_pause_s),
            reraise=True,
            before_sleep=lambda _: self._on_retry(),
        )
        found: list[Answer] = []
        taken = 0
        async for attempt in retrying:
            with attempt:
                try:
                    while len(found) < len(requests):
                        found += await self._some(requests[len(found) :])
                    return found
                except SequenceTaken as error:
                    taken += 1
                    if taken > 1:  # and that under the lock of the job, so no rival can have done it
                        raise JobDamaged(f"the log and the row of a job contradict each other: {error}") from error
                    raise
        raise AssertionError("tenacity returns or raises")

    async def _some(self, requests: Sequence[Request]) -> list[Answer]:
        """Those of the requests, the first one at least, whose deciding takes no longer than a transaction may."""
        answers = await self._in_time(self._once(requests))
        return [_decided(one) for one in takewhile(lambda one: not _is_late(one), answers)]

    async def _once(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
        async with self._store.unit_of_work() as uow:
            return await self._batches.run(uow, requests, waits=True)

    async def _in_time(self, deciding: Awaitable[list[Answer | Undecided]]) -> list[Answer | Undecided]:
        decided_before_s = self._batches.deciding_s
        try:
            async with asyncio.timeout(self._patience.attempt_s):
                return await deciding
        except TimeoutError as error:
            raise _timed_out(self._patience.attempt_s, self._batches.deciding_s - decided_before_s) from error


def _timed_out(limit_s: float, deciding_s: float) -> Retryable:
    """What used up the time of a transaction; ``deciding_s`` counts all that were under way, which delay each other."""
    if deciding_s > limit_s / 2:
        return DecidingTimedOut(
            f"a transaction did not end within {limit_s:g} s, as decisions took {deciding_s:.1f} s: too much CPU"
        )
    return StoreTimedOut(f"the store did not answer within {limit_s:g} s, of which decisions took {deciding_s:.1f} s")


async def _answered(
    requests: Sequence[Request], decide_all: Callable[[Sequence[Request]], Awaitable[list[_Found]]]
) -> list[Answer | _Found]:
    """The answers to requests, in their order, without deciding those that no store can hold."""
    asked = [(request, address_problems(request.job_id, request.command_id)) for request in requests]
    sound = [request for request, problems in asked if not problems]
    answers = iter(await decide_all(sound) if sound else [])
    return [misaddressed(request, problems) if problems else next(answers) for request, problems in asked]


def _is_late(answer: Answer | Undecided) -> bool:
    return isinstance(answer, Undecided) and isinstance(answer.cause, OutOfTime)


def _decided(answer: Answer | Undecided) -> Answer:
    if isinstance(answer, Undecided):
        raise answer.cause
    return answer
