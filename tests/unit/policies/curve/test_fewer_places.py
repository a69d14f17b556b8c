"""Many batch sizes: neighbours are seen as one, so that a choice stays quick, and says the same."""

import math

import pytest

from bso.policies.curve.epoch_records import on_fewer_places


def test_up_to_64_places_stay_as_they_are() -> None:
    seen = [(i, float(i), 1.0) for i in range(64)]
    assert on_fewer_places(seen, [float(i) for i in range(64)]) is seen


@pytest.mark.parametrize("count", [65, 1000])
def test_more_places_become_64_at_most_and_no_weight_is_lost(count: int) -> None:
    places = [math.log2(8 * (i + 1)) for i in range(count)]
    seen = [(i, 3.0 + 0.5 * places[i], 1.0 + i % 3) for i in reversed(range(count))]
    fewer = on_fewer_places(seen, places)
    assert 32 < len(fewer) <= 64
    assert len({i for i, _, _ in fewer}) == len(fewer)
    assert sum(weight for _, _, weight in fewer) == pytest.approx(sum(weight for _, _, weight in seen))
    for i, value, _ in fewer:
        assert value == pytest.approx(3.0 + 0.5 * places[i], abs=0.1), "where it stands, it says what was seen"
