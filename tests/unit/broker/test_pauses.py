"""The pauses between sessions."""

import pytest

from bso_broker.connection import Pauses


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
