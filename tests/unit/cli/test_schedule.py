"""When recurrences are due."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bso.cli.recurring.records import Run
from bso.cli.recurring.schedule import (
    MOST_COUNTED,
    Cron,
    Every,
    duration_in_words,
    next_due,
    period_from,
    schedule_of,
)
from bso.domain.errors import Misconfigured

MONDAY = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
DAILY = Every(period=timedelta(days=1), since=MONDAY)


@pytest.fixture
def _in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not Path("/usr/share/zoneinfo/Europe/Berlin").exists():
        pytest.skip("this machine knows no time zones")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def days(count: float) -> timedelta:
    return timedelta(days=count)


def test_a_period_is_due_at_once_and_then_in_step_with_its_beginning() -> None:
    assert next_due(DAILY, last=None, now=MONDAY + days(3), catches_up=False).at == MONDAY + days(3)
    due = next_due(DAILY, last=MONDAY, now=MONDAY + days(0.2), catches_up=False)
    assert (due.at, due.missed) == (MONDAY + days(1), 0)


def test_occasions_that_passed_are_missed_and_said_to_be() -> None:
    due = next_due(DAILY, last=MONDAY, now=MONDAY + days(2.5), catches_up=False)
    assert (due.at, due.missed, due.since) == (MONDAY + days(3), 2, MONDAY + days(1))


def test_catching_up_makes_up_for_all_of_them_with_one() -> None:
    now = MONDAY + days(2.5)
    due = next_due(DAILY, last=MONDAY, now=now, catches_up=True)
    assert (due.at, due.missed) == (now, 1)
    assert next_due(DAILY, last=due.at, now=now + days(0.1), catches_up=True).at == MONDAY + days(3)


def test_the_night_is_waited_for() -> None:
    nightly = Cron(expression="0 3 * * *", since=MONDAY)
    due = next_due(nightly, last=None, now=MONDAY, catches_up=True)
    assert due.missed == 0
    assert due.at.astimezone().strftime("%H:%M") == "03:00"
    assert timedelta() < due.at - MONDAY <= days(1)


def test_many_missed_occasions_are_not_counted_for_ever() -> None:
    busy = Cron(expression="* * * * *", since=MONDAY)
    due = next_due(busy, last=None, now=MONDAY + days(30), catches_up=False)
    assert due.missed == MOST_COUNTED
    assert due.at == MONDAY + days(30) + timedelta(minutes=1)


@pytest.mark.usefixtures("_in_berlin")
def test_cron_keeps_to_the_clock_on_the_wall_when_it_is_put_forward_or_back() -> None:
    def nights(since: datetime, expression: str) -> list[str]:
        schedule, found = Cron(expression=expression, since=since), [since]
        for _ in range(3):
            found.append(schedule.next_after(found[-1]))
        return [one.astimezone().strftime("%d %H:%M") for one in found[1:]]

    spring, autumn = datetime(2026, 3, 27, 12, tzinfo=UTC), datetime(2026, 10, 23, 12, tzinfo=UTC)
    assert nights(spring, "0 5 * * *") == ["28 05:00", "29 05:00", "30 05:00"]
    assert nights(spring, "30 2 * * *") == ["28 02:30", "29 03:30", "30 02:30"]  # 02:30 does not exist on the 29th
    in_the_second_hour = datetime(2026, 10, 25, 1, 40, tzinfo=UTC)  # 02:40, for the second time
    assert nights(in_the_second_hour, "*/30 * * * *")[0] == "25 03:00"
    assert nights(autumn, "30 2 * * *") == ["24 02:30", "25 02:30", "26 02:30"]  # and does so twice on the 25th


def test_a_date_that_never_comes_is_no_schedule() -> None:
    with pytest.raises(Misconfigured, match="no schedule"):
        schedule_of(Run(command=("true",), began_at=MONDAY, cron="0 3 31 2 *"))
    with pytest.raises(Misconfigured, match="five fields"):
        schedule_of(Run(command=("true",), began_at=MONDAY, cron="daily"))


@pytest.mark.parametrize("wrong", ["", "0h", "5", "1.5h", "1y", "-1h", "999999999w"])
def test_what_is_no_period_says_what_one_is(wrong: str) -> None:
    with pytest.raises(Misconfigured, match="--every"):
        period_from(wrong)


def test_durations_in_words() -> None:
    durations = [period_from("90m"), *(timedelta(seconds=one) for one in (0, 59.6, 3600, 90061))]
    assert [duration_in_words(one) for one in durations] == ["1 h 30 min", "0 s", "1 min", "1 h", "1 d 1 h"]
