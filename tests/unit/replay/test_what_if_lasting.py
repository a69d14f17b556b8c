"""How long trainings take, some of which were stopped: worked out by hand, and what always holds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso.replay.what_if.lasting import Distribution, Lasted, Tail, distribution_of, equally_likely


def reached(*steps: int) -> list[Lasted]:
    return [Lasted(steps=one, is_reached=True) for one in steps]


def stopped(*steps: int) -> list[Lasted]:
    return [Lasted(steps=one, is_reached=False) for one in steps]


def shares(distribution: Distribution) -> tuple[dict[int, float], dict[int, float]]:
    return dict(distribution.reached), dict(distribution.open)


def test_without_stopped_trainings_each_counts_alike() -> None:
    assert shares(distribution_of(reached(5, 7, 7, 9))) == ({5: 0.25, 7: 0.5, 9: 0.25}, {})


def test_a_stopped_training_counts_for_those_that_lasted_longer() -> None:
    """Kaplan and Meier: S(3) = 4/5, S(6) = 4/5 * 2/3, S(8) = 4/5 * 2/3 * 1/2, and the last one ends all."""
    found, left = shares(distribution_of([*reached(3, 6, 8, 10), *stopped(5)]))
    assert found == {
        3: pytest.approx(1 / 5),
        6: pytest.approx(4 / 5 * 1 / 3),
        8: pytest.approx(4 / 5 * 2 / 3 * 1 / 2),
        10: pytest.approx(4 / 5 * 2 / 3 * 1 / 2),
    }
    assert left == {}


def test_kaplan_and_meiers_own_example() -> None:
    """Deaths at 0.8, 3.1, 5.4, 9.2, losses at 1.0, 2.7, 7.0, 12.1 months: their table gives 7/8, 7/10, 21/40, 21/80."""
    observed = [*reached(8, 31, 54, 92), *stopped(10, 27, 70, 121)]
    found, left = shares(distribution_of(observed))
    surviving = [7 / 8, 7 / 10, 21 / 40, 21 / 80]
    assert list(found) == [8, 31, 54, 92]
    passed = [1 - sum(list(found.values())[: index + 1]) for index in range(4)]
    assert passed == pytest.approx(surviving)
    assert left == {121: pytest.approx(21 / 80)}


def test_a_training_stopped_in_the_step_in_which_another_succeeds_lasts_longer() -> None:
    assert shares(distribution_of([*stopped(4), *reached(4)])) == ({4: 0.5}, {4: 0.5})


def test_stopped_trainings_that_nothing_outlasts_need_one_step_more_or_all_of_them() -> None:
    distribution = distribution_of([*reached(5, 5), *stopped(7, 20)])
    assert shares(distribution) == ({5: 0.5}, {7: 0.25, 20: 0.25})
    short = equally_likely(distribution, Tail.SHORT, limit=20, observations=4)
    assert short == (5,) * 100 + (8,) * 50 + (None,) * 50  # one more than 20 is beyond the limit
    assert equally_likely(distribution, Tail.ENDLESS, limit=20, observations=4) == (5,) * 100 + (None,) * 100


OBSERVED = st.lists(st.builds(Lasted, steps=st.integers(1, 30), is_reached=st.booleans()), min_size=1, max_size=40)


@given(OBSERVED)
def test_shares_are_all_there_is_and_nothing_is_invented(observed: list[Lasted]) -> None:
    distribution = distribution_of(observed)
    assert math.fsum(share for _, share in (*distribution.reached, *distribution.open)) == pytest.approx(1.0)
    assert {steps for steps, _ in distribution.reached} == {one.steps for one in observed if one.is_reached}
    assert {steps for steps, _ in distribution.open} <= {one.steps for one in observed if not one.is_reached}


@given(OBSERVED)
def test_the_assumptions_enclose_every_length_that_a_stopped_training_may_have_had(observed: list[Lasted]) -> None:
    limit = 30
    distribution = distribution_of(observed)
    short = equally_likely(distribution, Tail.SHORT, limit=limit, observations=len(observed))
    endless = equally_likely(distribution, Tail.ENDLESS, limit=limit, observations=len(observed))
    assert len(short) == len(endless) >= 200
    assert all(one <= other for one, other in zip(map(_length, short), map(_length, endless), strict=True))
    certain = sum(one is not None for one in endless)
    assert short[:certain] == endless[:certain]
    assert set(short[certain:]) <= {steps + 1 for steps, _ in distribution.open if steps < limit} | {None}


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 30))
def test_the_truth_lies_between_the_assumptions_where_all_are_stopped_at_one_bound(
    lengths: list[int], bound: int
) -> None:
    observed = [Lasted(steps=min(length, bound), is_reached=length <= bound) for length in lengths]
    distribution = distribution_of(observed)
    short, endless = (
        sorted(map(_length, equally_likely(distribution, tail, limit=30, observations=len(lengths)))) for tail in Tail
    )
    truth = sorted(lengths * (len(short) // len(lengths)))
    assert all(least <= length <= most for least, length, most in zip(short, truth, endless, strict=True))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40))
def test_without_stopped_trainings_the_shares_are_exact(lengths: list[int]) -> None:
    likely = equally_likely(distribution_of(reached(*lengths)), Tail.SHORT, limit=30, observations=len(lengths))
    factor = len(likely) // len(lengths)
    assert sorted(likely, key=_length) == sorted(lengths * factor)


def _length(steps: int | None) -> float:
    return math.inf if steps is None else steps
