"""What can go wrong between a command and its recorded decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bso.domain.errors import Misconfigured, Rejected, Retryable
from bso.schema.errors import StateTooNew

if TYPE_CHECKING:
    from bso.service.records import StoredEvent


class Conflict(Retryable):
    """Another transaction was in the way (deadlock, lock wait, serialization): nothing happened, try again now."""


class JobHeld(Conflict):
    """Another transaction holds a job. While the ``last_seq`` of its row rises, others decide on it: it is busy."""

    def __init__(self, job_id: str, *, last_seq: int) -> None:
        super().__init__(f"another transaction holds job {job_id}")
        self.last_seq = last_seq


class SequenceTaken(Conflict):
    """The log of a job has an event with this number: a rival was faster, or the job's row is behind its log."""


class CommandTaken(Conflict):
    """The log has an event of this command: it was decided before."""


class JobDamaged(Retryable):
    """What is stored of a job contradicts itself, or cannot be read: an operator has to look after it."""

    needs_operator = True


class EventUnreadable(StateTooNew):
    """An event of the log cannot be read by this release: its ``event_id``, and the events before it on its page."""

    def __init__(self, words: str, *, event_id: int, before: Sequence[StoredEvent]) -> None:
        super().__init__(words)
        self.event_id = event_id
        self.before = before


class EventIdsReused(Conflict):
    """The store gave an event_id that is not above one that it gave before: it holds an older state than it did."""


class NotAsExpected(Conflict):
    """What was expected of the store does not hold: it has to be read."""


class OutOfTime(Retryable):
    """The commands before it have used up the time of a transaction: it comes in the next one."""


class StoreLost(Retryable):
    """The connection to the store broke: if it happened at commit, the outcome is unknown until asked by command_id."""


class StoreUnavailable(Retryable):
    """The store cannot be reached, does not answer in time, or cannot write: nothing can be decided for now."""


class StoreTimedOut(StoreUnavailable):
    """The store did not answer within the time of a transaction: the outcome is unknown until asked by command_id."""


class DecidingTimedOut(Retryable):
    """Decisions took most of the time of a transaction: more CPU would help, another store would not."""


class StoreNotReady(Retryable):
    """The store's schema is newer than this program: upgrade the program and go on."""

    needs_operator = True


class StoreRefused(StoreUnavailable):
    """The store refused a statement for a reason that is not known to lie in the data."""


class Unstorable(Rejected):
    """The data of a command cannot be stored: too long, out of range, or not representable."""


class SchemaMissing(Misconfigured):
    """The tables are missing or older than this program: run ``bso migrate``."""


class StoreUnusable(Misconfigured):
    """What the address names is not a database of ours, or may not be written by this user."""


class StoreLoginRefused(Misconfigured):
    """The store refused the login."""


class DatabaseMissing(Misconfigured):
    """The database server has no database of the name in the address."""


class StorePrivilegeMissing(StoreLoginRefused):
    """The login of the store may not do something that bso has to do."""


class LogOutdated(Misconfigured):
    """The store holds an older state of the log than it did before: a backup was restored. Run ``bso restored``."""
