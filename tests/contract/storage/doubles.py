"""Real stores and the real rule, with one step of theirs held up or broken."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from time import thread_time
from typing import Any, cast

from bso.domain.commands import Command
from bso.domain.decide import Context, Decision, Facts, decide
from bso.domain.job import Job
from bso.service.ports import Decide, UnitOfWork, UnitsOfWork
from bso.service.records import ChangeSet

Step = Callable[[UnitOfWork], Awaitable[None]]


class SteppedStore:
    """A store that does something of its own at the commit of every unit of work, before or in place of it."""

    def __init__(self, store: UnitsOfWork, at_commit: Step) -> None:
        self._store = store
        self._at_commit = at_commit
        self.was_asked = asyncio.Event()

    def unit_of_work(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """Begin a transaction."""
        return self._begin()

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[UnitOfWork]:
        self.was_asked.set()
        async with self._store.unit_of_work() as uow:
            yield cast(UnitOfWork, _Stepped(uow, self._at_commit))


class _Stepped:
    """A unit of work whose commit is a step; what the step gets commits the same changes."""

    def __init__(self, uow: UnitOfWork, at_commit: Step) -> None:
        self._uow = uow
        self._at_commit = at_commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._uow, name)

    async def commit(self, changes: ChangeSet | None = None, *, above: int = 0) -> Mapping[tuple[str, int], int]:
        given = _Given(self._uow, changes, above)
        await self._at_commit(cast(UnitOfWork, given))
        return given.event_ids


class _Given:
    def __init__(self, uow: UnitOfWork, changes: ChangeSet | None, above: int) -> None:
        self._uow = uow
        self._changes = changes
        self._above = above
        self.event_ids: Mapping[tuple[str, int], int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._uow, name)

    async def commit(self) -> None:
        self.event_ids = await self._uow.commit(self._changes, above=self._above)


class HeldCommit:
    """A step that stands still before it commits, until it is let go."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self, uow: UnitOfWork) -> None:
        self.arrived.set()
        await self.let_go.wait()
        await uow.commit()


async def plain_commit(uow: UnitOfWork) -> None:
    """A step that only commits."""
    await uow.commit()


def rule_that_breaks_on(command_id: str) -> Decide:
    """The real rule, with a bug that one command meets."""

    def rule(job: Job, command: Command, facts: Facts, context: Context) -> Decision:
        if context.command_id == command_id:
            raise ZeroDivisionError("a bug in a rule")
        return decide(job, command, facts, context)

    return rule


def rule_that_overflows_on(command_id: str) -> Decide:
    """The real rule, but one command's trial gets a batch size that no database can store."""

    def rule(job: Job, command: Command, facts: Facts, context: Context) -> Decision:
        decision = decide(job, command, facts, context)
        if context.command_id != command_id:
            return decision
        trial = decision.job.trials[decision.job.last_trial_number]
        return replace(decision, job=decision.job.with_trial(replace(trial, batch_size=2**70)))

    return rule


def rule_that_writes_too_much_on(command_id: str, *, characters: int = 500) -> Decide:
    """The real rule, but one command's trial gets a recurrence_id that is longer than its column."""

    def rule(job: Job, command: Command, facts: Facts, context: Context) -> Decision:
        decision = decide(job, command, facts, context)
        if context.command_id != command_id:
            return decision
        trial = decision.job.trials[decision.job.last_trial_number]
        return replace(decision, job=decision.job.with_trial(replace(trial, recurrence_id="x" * characters)))

    return rule


def rule_that_takes(seconds: float, *, job_id: str) -> Decide:
    """The real rule, but each decision for one job takes so much CPU time."""

    def rule(job: Job, command: Command, facts: Facts, context: Context) -> Decision:
        until_s = thread_time() + seconds * (job.job_id == job_id)
        while thread_time() < until_s:
            pass
        return decide(job, command, facts, context)

    return rule
