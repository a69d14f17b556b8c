"""What optimistic batches are decided on: jobs as this process keeps them, none of it read from the store.

Whether the store still holds the jobs so is found out when the batch is recorded, in the same request. That fails where
another process has decided on one of them meanwhile, and was done in vain; so it is tried only while reading finds,
time after time, that nobody else has changed a job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from bso.domain.commands import FACTS, ReportEpoch, Request
from bso.domain.decide import Known, Needs, needs
from bso.service.log_epochs import LogWatch
from bso.service.read_set import ReadSet
from bso.service.records import Expected, LogEpoch, Recollection
from bso.service.serialization import KnownJob, KnownJobs

CLOCK_LASTS_S = 1.0
"""For so long after the store's clock was read, this process carries it on."""
_CLOCK_TOLERANCE = timedelta(seconds=2)  # for what happens between deciding and recording, the machine stopped included
_CORRECTION = 0.01  # seconds per second, by which a clock that is carried on too fast is slowed down
_CURRENT_READS, _MOST_READS = 4, 64  # one after the other, before the next optimistic batch
_MANY = 50  # batches that are recorded one after the other: the next one in vain asks for the fewest reads again
_NOTHING = Needs()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Assumptions:
    """What this process assumes of the store: its clock, the epoch of its log, and that nobody else writes to it."""

    def __init__(self, watch: LogWatch | None) -> None:
        self._watch = watch
        self._current_reads = 0
        self._reads_needed = _CURRENT_READS
        self._recorded = 0  # since the last one in vain
        self._log_epoch: LogEpoch | None = None
        self._read_at_s = -CLOCK_LASTS_S
        self._ahead_s: float | None = None  # of the event loop's clock is the store's, at least

    def note(self, read: ReadSet) -> None:
        """Take over what a batch has read.

        The store's clock is carried on so that it is never behind what was read, nor goes backwards.
        """
        if read.was_current is not None:
            self._current_reads = self._current_reads + 1 if read.was_current else 0
        self._log_epoch = read.memory.log_epoch
        ahead_s = (read.memory.now - _EPOCH).total_seconds() - read.read_at_s
        if self._ahead_s is not None:
            ahead_s = max(ahead_s, self._ahead_s - _CORRECTION * max(0.0, read.read_at_s - self._read_at_s))
        self._ahead_s = ahead_s
        self._read_at_s = max(self._read_at_s, read.read_at_s)

    def note_recorded(self) -> None:
        """An optimistic batch was recorded."""
        self._recorded += 1

    def note_vain(self) -> None:
        """An optimistic batch was decided in vain: the next one comes after twice as many reads, or after the fewest.

        The fewest after many that were recorded. So at most one batch in 50 is decided twice in the long run, also
        where commands of one client leave no events.
        """
        more = _CURRENT_READS if self._recorded >= _MANY else min(2 * self._reads_needed, _MOST_READS)
        self._current_reads, self._reads_needed, self._recorded = 0, more, 0

    def note_refusal(self) -> None:
        """The store has refused an optimistic batch: even the clock may be wrong."""
        self.note_vain()
        self._ahead_s = None

    def read_set(self, requests: Sequence[Request], known_jobs: KnownJobs) -> ReadSet | None:
        """What these requests may be decided on now without reading; None: they cannot.

        Only facts can, since they change nothing but jobs, trials and power profiles.
        """
        memory = self._memory()
        if memory is None or not all(isinstance(request.command, FACTS) for request in requests) or _repeat(requests):
            return None
        job_ids = {request.job_id for request in requests}
        kept = known_jobs.of(job_ids)
        if len(kept) < len(job_ids) or not all(_is_current(one, memory.log_epoch) for one in kept.values()):
            return None
        jobs = {job_id: one.job for job_id, one in kept.items()}
        if any(needs(jobs[one.job_id], one.command, user=one.user) != _NOTHING for one in requests):
            return None
        return ReadSet(
            memory=memory,
            read_at_s=self._read_at_s,
            was_current=None,
            unusable={},
            jobs=jobs,
            revisions={job_id: one.revision for job_id, one in kept.items() if one.revision is not None},
            texts={job_id: one.text for job_id, one in kept.items()},
            trials={(job_id, number): trial for job_id, job in jobs.items() for number, trial in job.trials.items()},
            known=Known(),
        )

    def _memory(self) -> Recollection | None:
        """The store's clock and log epoch, as long as they may be assumed."""
        now_s, epoch = asyncio.get_running_loop().time(), self._epoch()
        is_fresh = now_s - self._read_at_s <= CLOCK_LASTS_S
        if self._ahead_s is None or epoch is None or self._current_reads < self._reads_needed or not is_fresh:
            return None
        now = _EPOCH + timedelta(seconds=now_s + self._ahead_s)
        return Recollection(now=now, replies={}, active={}, log_epoch=epoch)

    def _epoch(self) -> LogEpoch | None:
        if self._watch is None:
            return self._log_epoch
        return None if self._watch.is_in_doubt else self._watch.seen


def expectation_of(assumed: ReadSet) -> Expected:
    """What must hold in the store for a batch to be recorded that was decided on what was assumed."""
    epoch = assumed.memory.log_epoch
    assert epoch is not None, "nothing is assumed of a log without an epoch"
    return Expected(revisions=assumed.revisions, log_epoch=epoch, now=assumed.memory.now, tolerance=_CLOCK_TOLERANCE)


def _repeat(requests: Sequence[Request]) -> bool:
    """Whether one of them repeats another one, as two ranks of a training that report the same epoch do.

    The second one leaves no event.
    """
    epochs = [
        (one.job_id, one.command.trial_number, one.command.epoch)
        for one in requests
        if isinstance(one.command, ReportEpoch)
    ]
    return len({*epochs}) < len(epochs) or len({one.command_id for one in requests}) < len(requests)


def _is_current(known: KnownJob, log_epoch: LogEpoch | None) -> bool:
    return known.revision is not None and log_epoch is not None and known.log_epoch == log_epoch.number
