"""A worker that dies by SIGKILL at a chosen point of its first batch in which a trial begins. Arguments: the point.

before_commit_frozen: as before_commit, but by SIGSTOP, with the locks of the transaction in its hands.
before_commit: decided, not recorded; after_commit: recorded, not answered; after_reply: answered, not acknowledged;
after_parking: a command of a job in trouble lies in a parking queue, and is not acknowledged.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from bso.domain.commands import BeginTrial, Request
from bso.service.answers import Answer, Undecided
from bso.service.engine import Engine
from bso.storage.unit_of_work import SqlUnitOfWork
from bso_broker.consumer import CommandConsumer
from bso_broker.messages import Delivery
from bso_workers import bootstrap
from bso_workers.__main__ import main
from bso_workers.admission import Admitted
from bso_workers.settlement import Settlement
from bso_workers.troubled_jobs import KEPT_HERE, TroubledJobs


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL cannot be survived")


def begins_a_trial(requests: Sequence[Request]) -> bool:
    return any(isinstance(request.command, BeginTrial) for request in requests)


class DiesBeforeCommit(Engine):
    async def attempt(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
        if begins_a_trial(requests):
            SqlUnitOfWork.commit = die_at_commit  # type: ignore[method-assign]  # this process has no other use for it
        return await super().attempt(requests)


async def die_at_commit(self: SqlUnitOfWork) -> None:
    die()


class FreezesBeforeCommit(Engine):
    has_frozen = False

    async def attempt(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
        if begins_a_trial(requests) and not self.has_frozen:
            FreezesBeforeCommit.has_frozen = True  # once: thawed, it is a worker like any other
            SqlUnitOfWork.commit = freeze_at_commit  # type: ignore[method-assign]  # likewise
        return await super().attempt(requests)


_commit = SqlUnitOfWork.commit


async def freeze_at_commit(self: SqlUnitOfWork) -> None:
    SqlUnitOfWork.commit = _commit  # type: ignore[method-assign]  # thawed, it commits as usual
    os.kill(os.getpid(), signal.SIGSTOP)
    await _commit(self)


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


class DiesAfterParking(TroubledJobs):
    async def keep(self, items: Sequence[Admitted]) -> None:
        if isinstance(items[0].request.command, KEPT_HERE):
            CommandConsumer.ack = die_at_ack  # type: ignore[method-assign]  # likewise
        await super().keep(items)


async def die_at_ack(self: CommandConsumer, deliveries: Sequence[Delivery]) -> None:
    die()


DOOM: dict[str, tuple[str, type]] = {
    "before_commit": ("Engine", DiesBeforeCommit),
    "before_commit_frozen": ("Engine", FreezesBeforeCommit),
    "after_commit": ("Settlement", DiesAfterCommit),
    "after_reply": ("Settlement", DiesAfterReply),
    "after_parking": ("TroubledJobs", DiesAfterParking),
}
setattr(bootstrap, *DOOM[sys.argv[1]])
sys.exit(main())
