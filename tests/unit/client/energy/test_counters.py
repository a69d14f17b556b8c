"""What readings of counters show, and what they do not."""

import math
import threading
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso_client.energy.counters import (
    MOST_POWER_W,
    EnergyCounter,
    Reading,
    energy_between,
    energy_of_window,
)
from bso_client.energy.rapl import keep_reading

POWER_W = 100.0


class Scripted:
    """A counter's raw value, and the clock beside it: readings take no time, and the next comes ``every_s`` later."""

    def __init__(self, values_j: Sequence[float], *, every_s: float = 1.0) -> None:
        self._values: Iterator[float] = iter(values_j)
        self._looks = 0
        self._every_s = every_s

    def read_j(self) -> float:
        return next(self._values)

    def clock(self) -> float:
        self._looks += 1
        return (self._looks + 1) // 2 * self._every_s


class Preempted:
    """A counter of ``POWER_W``; its reader loses so much time [s] before and after it looks, one pair per look."""

    def __init__(self, *lost_s: tuple[float, float]) -> None:
        self._lost_s = iter(lost_s)
        self.now = 0.0

    def read_j(self) -> float:
        before_s, after_s = next(self._lost_s)
        self.now += before_s
        energy_j = POWER_W * self.now
        self.now += after_s
        return energy_j

    def clock(self) -> float:
        return self.now


def steady(raw: Scripted | Preempted) -> EnergyCounter:
    return EnergyCounter(raw.read_j, clock=raw.clock)


def wrapping(values_j: Sequence[float], *, range_j: float = 10_000.0, every_s: float = 1.0) -> EnergyCounter:
    scripted = Scripted(values_j, every_s=every_s)
    return EnergyCounter(scripted.read_j, range_j=range_j, clock=scripted.clock)


def reading(energy_j: float, *, at_s: float = 0.0, breaks: int = 0) -> Reading:
    return Reading(energy_j=energy_j, at_s=at_s, breaks=breaks)


def test_energy_is_the_difference_of_two_readings() -> None:
    assert energy_between(reading(5.0), reading(7.5)) == 2.5


UNKNOWN = [
    (None, reading(1.0)),
    (reading(1.0), None),
    (reading(1.0), reading(2.0, at_s=1.0, breaks=1)),
    (reading(2.0), reading(1.0, at_s=1.0)),
]


@pytest.mark.parametrize(("begin", "end"), UNKNOWN)
def test_energy_is_unknown_where_a_reading_is_missing_or_the_thread_was_lost(
    begin: Reading | None, end: Reading | None
) -> None:
    assert math.isnan(energy_between(begin, end))
    assert math.isnan(energy_of_window(begin, end, window_s=1.0))


@given(
    begun_s=st.floats(0.0, 1e6),
    window_s=st.floats(0.01, 1e5),
    before_s=st.floats(0.0, 100.0),
    after_s=st.floats(0.0, 100.0),
)
def test_under_constant_power_it_does_not_matter_when_the_counter_was_read(
    begun_s: float, window_s: float, before_s: float, after_s: float
) -> None:
    begin_s, end_s = begun_s - before_s, begun_s + window_s + after_s
    begin, end = (reading(POWER_W * (at_s + 1e6), at_s=at_s) for at_s in (begin_s, end_s))

    assert energy_of_window(begin, end, window_s=window_s) == pytest.approx(POWER_W * window_s, rel=1e-5)


def test_readings_at_the_ends_of_a_window_are_taken_as_they_are() -> None:
    begin, end = reading(0.1, at_s=1000.1), reading(0.8, at_s=1000.7)

    assert energy_of_window(begin, end, window_s=end.at_s - begin.at_s) == 0.8 - 0.1


@given(window_s=st.floats(0.0, 1e3), apart_s=st.floats(0.0, 1e3), energy_j=st.floats(0.0, 1e6))
def test_a_window_has_at_most_what_was_counted_however_short_it_is(
    window_s: float, apart_s: float, energy_j: float
) -> None:
    window_s, apart_s = sorted((window_s, apart_s))

    assert 0.0 <= energy_of_window(reading(0.0), reading(energy_j, at_s=apart_s), window_s=window_s) <= energy_j


@pytest.mark.parametrize(
    ("lost_s", "at_s", "seen_at_s"),
    [
        ([(0.0004, 0.0004)], 0.0004, 0.0004),
        ([(0.0008, 0.0)], 0.0004, 0.0008),
        ([(4.0, 0.0), (0.0, 0.0)], 4.0, 4.0),
        ([(0.0, 4.0), (0.0, 0.0)], 4.0, 4.0),
        ([(4.0, 0.0), (2.0, 0.0)], 5.0, 6.0),
        ([(2.0, 0.0), (4.0, 0.0)], 1.0, 2.0),
    ],
    ids=["middle", "before", "preempted before", "preempted after", "twice, less", "twice, more"],
)
@pytest.mark.parametrize("range_j", [None, 1e6])
def test_a_reading_knows_its_instant_and_is_repeated_if_it_took_long(
    range_j: float | None, lost_s: list[tuple[float, float]], at_s: float, seen_at_s: float
) -> None:
    raw = Preempted((0.0, 0.0), *lost_s)
    counter = EnergyCounter(raw.read_j, clock=raw.clock, range_j=range_j)
    first, then = counter.read(), counter.read()

    assert first.at_s == 0.0
    assert then.at_s == pytest.approx(at_s)
    assert energy_between(first, then) == pytest.approx(POWER_W * seen_at_s)


def test_a_counter_that_went_backwards_is_not_believed_although_it_has_caught_up() -> None:
    counter = steady(Scripted([100.0, 0.5, 150.0, 160.0]))
    before, _, after, later = (counter.read() for _ in range(4))

    assert math.isnan(energy_between(before, after))
    assert energy_between(after, later) == 10.0


def test_a_counter_that_wraps_goes_on() -> None:
    counter = wrapping([9_900.0, 9_990.0, 80.0, 200.0])
    readings = [counter.read() for _ in range(4)]

    assert [energy_between(readings[0], reading) for reading in readings] == [0.0, 90.0, 180.0, 300.0]


def test_a_counter_may_wrap_many_times_while_it_is_read() -> None:
    powers = [900.0] * 100
    counter = wrapping([sum(powers[:count]) % 10_000.0 for count in range(101)])
    first = counter.read()
    for _ in range(99):
        counter.read()

    assert energy_between(first, counter.read()) == pytest.approx(90_000.0)


def test_a_counter_that_was_reset_did_not_wrap() -> None:
    counter = wrapping([3_000.0, 10.0, 20.0])
    before, after, later = counter.read(), counter.read(), counter.read()

    assert math.isnan(energy_between(before, after))
    assert energy_between(after, later) == 10.0


def test_a_counter_that_was_not_read_for_too_long_may_have_wrapped_twice() -> None:
    counter = wrapping([10.0, 20.0], every_s=10_000.0 / MOST_POWER_W + 1)

    assert math.isnan(energy_between(counter.read(), counter.read()))


@given(increments=st.lists(st.floats(0.0, MOST_POWER_W), min_size=1, max_size=50), start_j=st.floats(0.0, 9_999.0))
def test_no_energy_is_lost_or_made_by_wrapping(increments: list[float], start_j: float) -> None:
    sums = [start_j + sum(increments[:count]) for count in range(len(increments) + 1)]
    counter = wrapping([value % 10_000.0 for value in sums])
    readings = [counter.read() for _ in sums]

    assert energy_between(readings[0], readings[-1]) == pytest.approx(sum(increments), abs=1e-6)


def test_counters_are_read_in_the_background_until_it_is_over() -> None:
    is_over, was_read = threading.Event(), threading.Semaphore(0)

    def read_j() -> float:
        was_read.release()
        return 1.0

    counter = EnergyCounter(read_j, range_j=40.0, clock=lambda: 0.0)  # to be read within 0.04 s
    thread = threading.Thread(target=keep_reading, args=((counter,), is_over))
    thread.start()

    assert all(was_read.acquire(timeout=10) for _ in range(3))
    is_over.set()
    thread.join(timeout=10)
    assert not thread.is_alive()
