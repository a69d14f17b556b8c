"""Where values lie on an axis, and which of them it names."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso.drawing.scales import Categories, Linear, Logarithmic, cost_label, linear, linear_from_zero, of_costs

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def labels(values: list[float]) -> list[str]:
    return [tick.label for tick in linear(values, start=0.0, end=300.0).ticks()]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 1.0], ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ([0.912, 0.9184], ["0.912", "0.914", "0.916", "0.918"]),
        ([-20.0, 30.0], ["-20", "-10", "0", "10", "20", "30"]),
        ([1e12, 1e12], ["9e+11", "9.5e+11", "1e+12", "1.05e+12", "1.1e+12"]),
        ([1e-9, 5e-9], ["1e-09", "2e-09", "3e-09", "4e-09", "5e-09"]),
        ([0.0, 0.0], ["-1", "-0.5", "0", "0.5", "1"]),
    ],
)
def test_ticks_are_round_and_have_the_digits_that_tell_them_apart(values: list[float], expected: list[str]) -> None:
    assert labels(values) == expected


@given(st.lists(FINITE, min_size=1, max_size=5))
def test_an_axis_holds_its_values_in_their_order(values: list[float]) -> None:
    scale = linear(values, start=256.0, end=30.0)
    assert scale.low < scale.high
    at = [scale.at(value) for value in sorted(values)]
    assert at == sorted(at, reverse=True)
    assert all(30.0 <= place <= 256.0 for place in at)


@given(st.lists(FINITE, min_size=1, max_size=5))
def test_an_axis_has_some_ticks_and_not_too_many(values: list[float]) -> None:
    places = [tick.at for tick in linear(values, start=0.0, end=300.0).ticks()]
    assert 2 <= len(places) <= 8
    assert places == sorted(set(places))


@pytest.mark.parametrize("powers", range(1, 300, 7))
def test_a_short_axis_has_fewer_ticks_but_never_none(powers: int) -> None:
    assert len(linear([0.0, 1.0], start=0.0, end=60.0).ticks()) <= 3
    scale = of_costs([1.3, 9.0 * 10.0**powers], start=0.0, end=60.0)
    assert 1 <= len(scale.ticks(cost_label)) <= 2


@given(st.lists(st.floats(5e-324, 1.7e308), min_size=1, max_size=5))
def test_an_axis_of_costs_holds_them_in_their_order_and_has_ticks(values: list[float]) -> None:
    scale = of_costs(values, start=0.0, end=100.0)
    at = [scale.at(value) for value in sorted(values)]
    assert at == sorted(at)
    assert all(0.0 <= place <= 100.0 for place in at)
    assert 1 <= len(scale.ticks(cost_label)) <= 8


def test_costs_that_differ_by_more_than_eight_times_have_a_logarithmic_axis() -> None:
    assert isinstance(of_costs([1.0, 8.0], start=0, end=1), Linear)
    assert isinstance(of_costs([1.0, 8.1], start=0, end=1), Logarithmic)


def test_on_a_logarithmic_axis_equal_ratios_have_equal_distances() -> None:
    scale = Logarithmic(low=0.0, high=3.0, start=0.0, end=300.0)
    assert [scale.at(value) for value in (0.0, 1.0, 10.0, 100.0, 1e9)] == pytest.approx([0, 0, 100, 200, 300])


def test_an_axis_from_zero_begins_there_whatever_it_holds() -> None:
    assert linear_from_zero([5.0, 10.0], start=0.0, end=106.0).at(5.0) == pytest.approx(50.0)
    assert linear_from_zero([0.0], start=0.0, end=1.0).high == 1.0
    assert linear_from_zero([math.inf], start=0.0, end=1.0).high < math.inf


def test_ticks_of_numbers_that_count_are_whole() -> None:
    ticks = [tick.label for tick in Linear(low=0.5, high=3.5, start=0.0, end=300.0).whole_ticks()]
    assert ticks == ["1", "2", "3"]


def test_of_categories_those_that_matter_have_a_label_before_others() -> None:
    scale = Categories(values=tuple(range(1, 101)), start=0.0, end=100.0)
    assert [tick.label for tick in scale.ticks(20.0, {50})] == ["1", "21", "50", "81"]
    assert [tick.label for tick in scale.ticks(0.5, ())] == [str(value) for value in range(1, 101)]


@pytest.mark.parametrize(
    ("cost", "label"), [(0.0, "0 J"), (1500.0, "1.5 kJ"), (1000.0, "1 kJ"), (12.5, "12.5 J"), (2e20, "200000000 TJ")]
)
def test_a_label_of_a_cost_has_no_zeros_to_spare(cost: float, label: str) -> None:
    assert cost_label(cost) == label
