"""What is assumed of a store without reading it: its clock, and that nobody else writes to it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from bso.domain.commands import DeleteJob, ReportEpoch, Request
from bso.domain.decide import Known
from bso.domain.job import Job
from bso.service import optimistic
from bso.service.optimistic import Assumptions
from bso.service.read_set import ReadSet
from bso.service.records import LogEpoch, Recollection
from bso.service.serialization import KnownJobs
from tests.contract.storage.job_requests import JOB, request

NOW = datetime(2030, 1, 1, tzinfo=UTC)
EPOCH = LogEpoch(number=7, looked_at=NOW)
REPORT = request(
    ReportEpoch(trial_number=1, trial_id="t", epoch=1.0, time_s=1.0, energy_j=1.0, metric=0.5), command_id="a report"
)


class Clock:
    """The clock of the event loop, which stands still between the moments that a test gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now_s)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that is set by hand."""
    return Clock(monkeypatch)


def a_read(*, now: datetime, at_s: float, was_current: bool | None = True) -> ReadSet:
    """What a batch has read."""
    return ReadSet(
        memory=Recollection(now=now, replies={}, active={}, log_epoch=EPOCH),
        read_at_s=at_s,
        was_current=was_current,
        unusable={},
        jobs={},
        revisions={},
        texts={},
        trials={},
        known=Known(),
    )


def kept() -> KnownJobs:
    """One job."""
    jobs = KnownJobs()
    jobs.keep(Job(job_id=JOB), text="{}", revision=3, log_epoch=EPOCH)
    return jobs


def assumed(assumptions: Assumptions, requests: Sequence[Request] = (REPORT,)) -> datetime | None:
    """The moment at which these may be decided without reading; None: they may not."""
    found = assumptions.read_set(requests, kept())
    return None if found is None else found.memory.now


def trusted(clock: Clock) -> Assumptions:
    """Assumptions after enough reads."""
    assumptions = Assumptions(None)
    for _ in range(4):
        assert assumed(assumptions) is None
        assumptions.note(a_read(now=NOW, at_s=clock.now_s))
    return assumptions


def reads_until_trusted(assumptions: Assumptions, clock: Clock, now: datetime) -> int:
    """So many reads come before the next batch is decided without one."""
    for reads in range(100):
        if assumed(assumptions) is not None:
            return reads
        assumptions.note(a_read(now=now, at_s=clock.now_s))
    raise AssertionError("no batch is decided without reading any more")


async def test_the_clock_is_carried_on_for_a_second(clock: Clock) -> None:
    assumptions = trusted(clock)
    assert assumed(assumptions) == NOW
    clock.now_s += 0.75
    assert assumed(assumptions) == NOW + timedelta(seconds=0.75)
    clock.now_s += optimistic.CLOCK_LASTS_S
    assert assumed(assumptions) is None
    assumptions.note(a_read(now=NOW + timedelta(seconds=2), at_s=clock.now_s))
    assert assumed(assumptions) == NOW + timedelta(seconds=2)


async def test_a_clock_that_is_read_slowly_does_not_go_back(clock: Clock) -> None:
    """An answer that takes 0.9 s to come tells how late it was then."""
    assumptions = trusted(clock)
    before = assumed(assumptions)
    assert before is not None
    clock.now_s += 0.5
    assumptions.note(a_read(now=NOW - timedelta(seconds=0.4), at_s=clock.now_s))
    after = assumed(assumptions)
    assert after is not None
    assert before < after <= NOW + timedelta(seconds=0.5)


async def test_an_older_read_that_is_noted_late_changes_nothing(clock: Clock) -> None:
    assumptions = trusted(clock)
    clock.now_s += 0.5
    assumptions.note(a_read(now=NOW - timedelta(seconds=1), at_s=clock.now_s - 1.0))
    assert assumed(assumptions) == NOW + timedelta(seconds=0.5)


async def test_a_clock_that_runs_more_slowly_is_followed(clock: Clock) -> None:
    """As much as a hundredth of the time, without going back."""
    assumptions, before = trusted(clock), NOW
    for second in range(1, 101):
        clock.now_s += 1.0
        assumptions.note(a_read(now=NOW + timedelta(seconds=0.995 * second), at_s=clock.now_s))
        now = assumed(assumptions)
        assert now is not None
        assert now > before
        assert abs(now - NOW - timedelta(seconds=0.995 * second)) < timedelta(seconds=0.01)
        before = now


async def test_a_clock_that_was_set_back_is_taken_over_after_a_failure(clock: Clock) -> None:
    assumptions = trusted(clock)
    assumptions.note_refusal()
    assert reads_until_trusted(assumptions, clock, NOW - timedelta(hours=1)) == 8
    assert assumed(assumptions) == NOW - timedelta(hours=1)


async def test_what_is_decided_in_vain_leaves_the_clock_as_it_was(clock: Clock) -> None:
    assumptions = trusted(clock)
    assumptions.note_vain()
    reads_until_trusted(assumptions, clock, NOW - timedelta(seconds=0.5))
    assert assumed(assumptions) == NOW


async def test_each_batch_in_vain_asks_for_more_reads_until_many_are_recorded(clock: Clock) -> None:
    assumptions, needed = trusted(clock), []
    for _ in range(6):
        assumptions.note_recorded()
        assumptions.note_vain()
        needed.append(reads_until_trusted(assumptions, clock, NOW))
    assert needed == [8, 16, 32, 64, 64, 64]
    for recorded, expected in ((49, 64), (50, 4), (0, 8)):
        for _ in range(recorded):
            assumptions.note_recorded()
        assumptions.note_vain()
        assert reads_until_trusted(assumptions, clock, NOW) == expected


@pytest.mark.parametrize(("was_current", "may"), [(True, True), (None, True), (False, False)])
async def test_reads_count_that_compare_jobs(clock: Clock, was_current: bool | None, may: bool) -> None:
    assumptions = trusted(clock)
    assumptions.note(a_read(now=NOW, at_s=clock.now_s, was_current=was_current))
    assert (assumed(assumptions) is not None) is may
    fresh = Assumptions(None)
    for _ in range(10):
        fresh.note(a_read(now=NOW, at_s=clock.now_s, was_current=None))
    assert assumed(fresh) is None


async def test_only_facts_are_decided_without_reading(clock: Clock) -> None:
    assumptions = trusted(clock)
    assert assumed(assumptions, [REPORT, request(DeleteJob())]) is None
    assert assumed(assumptions, [REPORT, request(REPORT.command, job_id="another")]) is None, "that is not kept"


async def test_what_is_repeated_in_a_batch_is_decided_after_reading(clock: Clock) -> None:
    assumptions = trusted(clock)
    assert isinstance(REPORT.command, ReportEpoch)
    later = replace(REPORT.command, epoch=2.0)
    assert assumed(assumptions, [REPORT, request(later)]) is not None
    assert assumed(assumptions, [REPORT, request(replace(REPORT.command, metric=0.6))]) is None, "of another rank"
    assert assumed(assumptions, [REPORT, request(later, command_id=REPORT.command_id)]) is None
    assert assumed(assumptions) is not None, "that was none in vain"
