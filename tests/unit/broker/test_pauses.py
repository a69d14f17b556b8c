"""The pauses between sessions."""

import pytest

from bso_broker.pauses import Pauses


def test_a_session_that_lived_long_is_followed_at_once() -> None:
    assert Pauses().after(3600) == 0


def test_sessions_that_die_young_follow_each_other_ever_more_slowly() -> None:
    pauses = Pauses()
    waited = [pauses.after(0.1) for _ in range(20)]
    assert 0 < waited[0] <= 0.1
    assert max(waited) <= 5
    assert sum(waited) > 30


@pytest.mark.parametrize("deaths", [1, 10])
def test_a_session_that_lives_long_makes_the_pauses_short_again(deaths: int) -> None:
    pauses = Pauses()
    for _ in range(deaths):
        pauses.after(0.1)
    pauses.after(60)
    assert pauses.after(0.1) <= 0.1


def test_those_who_lost_the_broker_at_once_come_back_spread_over_a_while() -> None:
    waited = sorted(Pauses(spread_s=3.0).after(3600) for _ in range(1000))
    in_each_half_second = [sum(half <= 2 * pause_s < half + 1 for pause_s in waited) for half in range(6)]
    assert sum(in_each_half_second) == 1000
    assert min(in_each_half_second) > 100


def test_after_a_long_outage_they_come_back_spread_over_the_longest_pause() -> None:
    pauses = Pauses(longest_s=20.0)
    waited = [pauses.after(0.0) for _ in range(100)][10:]
    assert 10 <= min(waited) < 11.5
    assert 18.5 < max(waited) <= 20


def test_trainings_that_have_just_begun_do_not_come_back_in_the_same_second_either() -> None:
    waited = sorted(Pauses(spread_s=3.0).after(2.0) for _ in range(1000))
    assert waited[0] < 0.1
    assert 2.9 < waited[-1] <= 3.0
    assert Pauses(spread_s=3.0).after(0.0) <= 0.1, "what has not even begun is tried again soon"
