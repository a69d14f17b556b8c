"""Quantities as people read them."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bso.domain.quantities import NOTHING, figure, joules, joules_within, more_or_less, percent, seconds, watts


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, NOTHING),
        (math.inf, NOTHING),
        (0.0, "0 J"),
        (2.28e-5, "22.8 µJ"),
        (0.0009996, "1.00 mJ"),
        (0.00099951, "1.00 mJ"),
        (0.0009994, "999 µJ"),
        (12.345, "12.3 J"),
        (10.0, "10 J"),
        (10.004, "10.0 J"),
        (999.7, "1.00 kJ"),
        (12_345.0, "12.3 kJ"),
        (2.5e6, "2.50 MJ"),
        (7e12, "7 TJ"),
        (-3.2, "-3.20 J"),
    ],
)
def test_an_energy_has_three_digits_and_a_prefix(value: float | None, words: str) -> None:
    assert joules(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, NOTHING),
        (math.nan, NOTHING),
        (0.0, "0 s"),
        (3.43e-5, "34.3 µs"),
        (0.00123, "1.23 ms"),
        (0.25, "250 ms"),
        (45.62, "45.6 s"),
        (59.96, "1 min 00 s"),
        (61, "1 min 01 s"),
        (3599.6, "1 h 00 min"),
        (7501, "2 h 05 min"),
        (86_399, "1 d 00 h"),
        (310_000, "3 d 14 h"),
    ],
)
def test_a_duration_has_the_units_that_suit_it(value: float | None, words: str) -> None:
    assert seconds(value) == words


@pytest.mark.parametrize(("value", "words"), [(1.0, "1 W"), (87.54, "87.5 W"), (3200.0, "3.20 kW")])
def test_a_power_has_three_digits_and_a_prefix(value: float, words: str) -> None:
    assert watts(value) == words


@pytest.mark.parametrize(
    ("mean", "deviation", "words"),
    [
        (33.4e6, 1.08e6, "33.4 ± 1.1 MJ"),
        (725.0, 104.0, "725 ± 104 J"),
        (9.11, 0.273, "9.11 ± 0.27 J"),
        (13.2, 30.3, "13 ± 30 J"),
        (12.0, 9.96, "12 ± 10 J"),
        (6.66e-5, 5e-6, "66.6 ± 5.0 µJ"),
        (3.84, 0.0901, "3.84 ± 0.09 J"),
        (3.84, 0.0012, "3.840 ± 0.001 J"),
        (6.0, 0.25, "6.00 ± 0.25 J"),
        (5.0, 0.0, "5.0 ± 0.0 J"),
        (-0.2, 23.0, "0 ± 23 J"),
        (119.6, 0.4, "119.6 ± 0.4 J"),
        (9.43, 1.1, "9.4 ± 1.1 J"),
        (None, 1.0, NOTHING),
        (1.0, None, NOTHING),
        (1.0, math.inf, NOTHING),
    ],
)
def test_a_mean_and_its_deviation_share_a_unit(mean: float | None, deviation: float | None, words: str) -> None:
    assert joules_within(mean, deviation) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.6234, "62%"),
        (0.0526, "5.3%"),
        (0.00732, "0.73%"),
        (0.996, "99.6%"),
        (0.99996, "99.996%"),
        (1.0, "100%"),
        (1e-17, "0%"),
        (None, NOTHING),
    ],
)
def test_a_share_has_two_digits(share: float | None, words: str) -> None:
    assert percent(share) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.53, "+53%"), (-0.0012, "-0.12%"), (0.0, "+0%"), (3e-17, "+0%"), (None, NOTHING), (math.nan, NOTHING)],
)
def test_a_change_has_a_sign(share: float | None, words: str) -> None:
    assert more_or_less(share) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0, "0"), (13.4, "13.4"), (9.0, "9"), (1 / 3, "0.333"), (123_456.7, "123457"), (1e-7, "0.0000001")],
)
def test_a_bare_number_needs_no_power_of_ten(value: float, words: str) -> None:
    assert figure(value) == words


@pytest.mark.parametrize("exponent", range(-12, 15))
@pytest.mark.parametrize("mantissa", [1.0, 1.2345, 9.994, 9.996])
def test_no_quantity_that_occurs_is_a_power_of_ten_or_a_thousand_of_a_unit(mantissa: float, exponent: int) -> None:
    value = mantissa * 10.0**exponent
    for words in (joules(value), seconds(value), watts(value), figure(value), joules_within(value, value / 3)):
        assert "e" not in words, words
    if value < 9.99e14:
        assert "1000" not in f"{joules(value)} {watts(value)} {joules_within(value, value / 3)}"


@given(st.floats(), st.floats())
@example(5e-324, 5e-324)
@example(1.7e308, 5e-324)
def test_every_number_has_words(value: float, other: float) -> None:
    for words in (joules(value), seconds(value), watts(value), figure(value), percent(value), more_or_less(value)):
        assert words
    assert joules_within(value, abs(other))
