"""A worker that dies by SIGKILL at a chosen point of its first batch in which a trial begins. Arguments: the point.

before_commit_frozen: as before_commit, but by SIGSTOP, with the locks of the transaction in its hands.
before_commit: decided, not recorded; after_commit: recorded, not answered; after_reply: answered, not acknowledged;
after_publishing: events are published, and not marked as published;
after_parking: a command of a job in trouble lies in a parking queue, and is not acknowledged.
"""

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NoReturn
from unittest.mock import patch

from bso.domain.commands import FACTS, BeginTrial, Request
from bso.service.answers import Answer, Undecided
from bso.service.engine import Engine
from bso.service.records import ChangeSet
from bso.storage.mysql import COMMIT, Requests
from bso.storage.unit_of_work import SqlUnitOfWork
from bso_broker.consumer import CommandConsumer
from bso_broker.messages import Delivery
from bso_workers import bootstrap
from bso_workers.__main__ import main
from bso_workers.admission import Admitted
from bso_workers.outbox import EventOutbox
from bso_workers.settlement import Settlement
from bso_workers.troubled_jobs import TroubledJobs


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL cannot be survived")


def begins_a_trial(requests: Sequence[Request]) -> bool:
    return any(isinstance(request.command, BeginTrial) for request in requests)


class DiesBeforeCommit(Engine):
    async def attempt(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
        if begins_a_trial(requests):
            at_commit(die)
        return await super().attempt(requests)


class FreezesBeforeCommit(Engine):
    is_armed = False

    async def attempt(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
        if begins_a_trial(requests) and not self.is_armed:
            FreezesBeforeCommit.is_armed = True
            at_commit(freeze_once)
        return await super().attempt(requests)


_send, _commit = Requests.send, SqlUnitOfWork.commit


@cache
def freeze_once() -> None:
    """Thawed, it is a worker like any other, also for the batches that were under way beside the first one."""
    os.kill(os.getpid(), signal.SIGSTOP)


def at_commit(do: Callable[[], None]) -> None:
    """Do something before each commit: on MySQL and MariaDB when all is written that the commit makes durable."""

    async def send(self: Requests, texts: Sequence[str]) -> list[Sequence[Sequence[Any]]]:
        if texts[-1] != COMMIT:
            return await _send(self, texts)
        written = await _send(self, texts[:-1]) if texts[:-1] else []
        do()
        return [*written, *await _send(self, texts[-1:])]

    async def commit(
        self: SqlUnitOfWork, changes: ChangeSet | None = None, *, above: int = 0
    ) -> Mapping[tuple[str, int], int]:
        do()
        return await _commit(self, changes, above=above)

    patch.object(Requests, "send", send).start()  # this process has no other use for them
    patch.object(SqlUnitOfWork, "commit", commit).start()


class DiesAfterCommit(Settlement):
    async def answer(self, admitted: Sequence[Admitted], answers: Sequence[Answer]) -> None:
        if begins_a_trial([one.request for one in admitted]):
            die()
        await super().answer(admitted, answers)


class DiesAfterReply(Settlement):
    async def answer(self, admitted: Sequence[Admitted], answers: Sequence[Answer]) -> None:
        if begins_a_trial([one.request for one in admitted]):
            CommandConsumer.ack = die_at_ack  # type: ignore[method-assign]  # this process has no other use for it
        await super().answer(admitted, answers)


class DiesAfterPublishing(EventOutbox):
    async def _mark(self) -> None:
        die()


class DiesAfterParking(TroubledJobs):
    async def keep(self, items: Sequence[Admitted]) -> None:
        if isinstance(items[0].request.command, FACTS):
            CommandConsumer.ack = die_at_ack  # type: ignore[method-assign]  # likewise
        await super().keep(items)


async def die_at_ack(self: CommandConsumer, deliveries: Sequence[Delivery]) -> None:
    die()


DOOM: dict[str, tuple[str, type]] = {
    "before_commit": ("Engine", DiesBeforeCommit),
    "before_commit_frozen": ("Engine", FreezesBeforeCommit),
    "after_commit": ("Settlement", DiesAfterCommit),
    "after_reply": ("Settlement", DiesAfterReply),
    "after_publishing": ("EventOutbox", DiesAfterPublishing),
    "after_parking": ("TroubledJobs", DiesAfterParking),
}
setattr(bootstrap, *DOOM[sys.argv[1]])
sys.exit(main())
