"""What readings of counters tell, and what they do not."""

import math
import threading
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso_client.energy.counters import (
    MOST_POWER_W,
    PowerIntegral,
    Reading,
    SteadyCounter,
    WrappingCounter,
    energy_between,
)
from bso_client.energy.opened import keep_reading


class Scripted:
    """A counter's raw value, and the clock beside it."""

    def __init__(self, values_j: Sequence[float], *, every_s: float = 1.0) -> None:
        self._values: Iterator[float] = iter(values_j)
        self._now = 0.0
        self._every_s = every_s

    def read_j(self) -> float:
        return next(self._values)

    def clock(self) -> float:
        self._now += self._every_s
        return self._now


def wrapping(values_j: Sequence[float], *, range_j: float = 10_000.0, every_s: float = 1.0) -> WrappingCounter:
    scripted = Scripted(values_j, every_s=every_s)
    return WrappingCounter(scripted.read_j, range_j=range_j, clock=scripted.clock)


def test_energy_is_the_difference_of_two_readings() -> None:
    assert energy_between(Reading(energy_j=5.0), Reading(energy_j=7.5)) == 2.5


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (None, Reading(energy_j=1.0)),
        (Reading(energy_j=1.0), None),
        (Reading(energy_j=1.0), Reading(energy_j=2.0, breaks=1)),
        (Reading(energy_j=2.0), Reading(energy_j=1.0)),
    ],
)
def test_energy_is_unknown_where_a_reading_is_missing_or_the_thread_was_lost(
    begin: Reading | None, end: Reading | None
) -> None:
    assert math.isnan(energy_between(begin, end))


def test_a_counter_that_went_backwards_is_not_believed_although_it_has_caught_up() -> None:
    counter = SteadyCounter(Scripted([100.0, 0.5, 150.0, 160.0]).read_j)
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


def test_power_is_integrated_by_trapezoids() -> None:
    integral = PowerIntegral(longest_gap_s=5.0)
    integral.add(0.0, 100.0)
    integral.add(1.0, 200.0)

    assert integral.add(3.0, 0.0) == Reading(energy_j=150.0 + 200.0)


def test_a_missing_sample_loses_the_thread_once() -> None:
    integral = PowerIntegral(longest_gap_s=5.0)
    before = integral.add(0.0, 100.0)
    integral.interrupt()
    integral.interrupt()
    again = integral.add(2.0, 100.0)

    assert again == Reading(energy_j=0.0, breaks=1)
    assert math.isnan(energy_between(before, again))
    assert energy_between(again, integral.add(3.0, 100.0)) == 100.0


def test_too_long_a_gap_between_samples_loses_the_thread() -> None:
    integral = PowerIntegral(longest_gap_s=5.0)
    before = integral.add(0.0, 100.0)

    assert math.isnan(energy_between(before, integral.add(5.5, 100.0)))


def test_counters_are_read_in_the_background_until_it_is_over() -> None:
    is_over, was_read = threading.Event(), threading.Semaphore(0)

    def read_j() -> float:
        was_read.release()
        return 1.0

    counter = WrappingCounter(read_j, range_j=40.0, clock=lambda: 0.0)  # to be read within 0.04 s
    thread = threading.Thread(target=keep_reading, args=((counter,), is_over))
    thread.start()

    assert all(was_read.acquire(timeout=10) for _ in range(3))
    is_over.set()
    thread.join(timeout=10)
    assert not thread.is_alive()
