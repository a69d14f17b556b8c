"""When surprises are too many to be chance."""

import random

import pytest

from bso.policies.curve.surprises import NO_SURPRISES, Surprises

DEVIATION = 0.1


def runs_until_alarm(*excesses: float) -> int | None:
    """After how many runs of these, again and again, there is a change; None: not within 100."""
    surprises = NO_SURPRISES
    for number in range(100):
        surprises = surprises.after_run(excesses[number % len(excesses)], DEVIATION)
        if surprises.is_change:
            return number + 1
    return None


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_large_surprise_is_a_change_at_once_and_small_ones_in_the_end(sign: float) -> None:
    assert runs_until_alarm(sign * 0.9) == 1
    assert runs_until_alarm(sign * 0.15) in range(5, 12)
    assert runs_until_alarm(sign * 0.04) is None


def test_a_long_run_now_and_then_is_none() -> None:
    assert runs_until_alarm(0.4, -0.1, -0.1, -0.1, -0.1) is None


def test_luck_is_taken_for_a_change_less_than_once_in_two_thousand_runs() -> None:
    draw, alarms, surprises = random.Random(1), 0, NO_SURPRISES
    for _ in range(20_000):
        surprises = surprises.after_run(draw.gauss(0.0, DEVIATION), DEVIATION)
        alarms += surprises.is_change
        surprises = surprises.left
    assert alarms < 10


def test_stops_of_what_hardly_ever_failed_are_a_change_and_of_what_often_does_none() -> None:
    def after_three(fails: float, excess: float) -> Surprises:
        surprises = NO_SURPRISES
        for _ in range(3):
            surprises = surprises.after_stop(excess, DEVIATION, fails)
        return surprises

    assert after_three(0.01, excess=0.7).is_change
    assert not after_three(0.2, excess=0.7).is_change
    assert after_three(0.01, excess=0.1) == NO_SURPRISES


def test_after_a_change_the_sums_begin_anew() -> None:
    assert Surprises(rising=5.0, creeping_up=3.0).left == NO_SURPRISES
    assert Surprises(rising=1.0, creeping_up=3.0).left == Surprises(rising=1.0, creeping_up=3.0)
