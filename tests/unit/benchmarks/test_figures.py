import json

import pytest

from tests.benchmarks.figures import Figures, Spread, percentile, spread_of
from tests.benchmarks.printing import json_of, table_of


def test_a_spread_has_the_least_the_middle_and_the_greatest() -> None:
    assert spread_of([3.0, 1.0, 2.0]) == Spread(least=1.0, middle=2.0, greatest=3.0)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 50.0), (0.99, 99.0), (1.0, 100.0)])
def test_a_percentile_is_one_of_the_values(share: float, expected: float) -> None:
    assert percentile([float(number) for number in range(100, 0, -1)], share) == expected


def test_ratios_compare_within_each_repetition() -> None:
    figures = Figures(benchmark="example")
    figures.add("case", "time", "ms", [10.0, 40.0], peer="floor", peer_values=[5.0, 10.0])
    (figure,) = figures.found
    assert figure.ratios == (2.0, 4.0)
    assert figure.ratio == Spread(least=2.0, middle=3.0, greatest=4.0)


def test_a_peer_that_took_no_measurable_time_gives_no_ratio() -> None:
    figures = Figures(benchmark="example")
    figures.add("case", "time", "ms", [10.0], peer="floor", peer_values=[0.0])
    (figure,) = figures.found
    assert figure.ratio is None
    assert not figure.peer


def test_the_table_and_the_json_agree() -> None:
    figures = Figures(benchmark="example")
    figures.add("case", "time", "ms", [10.0, 12_345.0, 0.05], peer="floor", peer_values=[5.0, 5.0, 5.0])
    heading, line = table_of(figures.found).splitlines()
    assert heading.split() == ["case", "quantity", "min", "median", "max", "ratio", "(min-max)", "to"]
    assert line.split() == ["case", "time", "[ms]", "0.05", "10.0", "12", "345", "2.0", "x", "(0.01-2", "469)", "floor"]
    noted = json.loads(json_of(figures.found, {"cores": 2}))
    assert noted["machine"] == {"cores": 2}
    assert noted["figures"][0]["spread"] == {"least": 0.05, "middle": 10.0, "greatest": 12_345.0}
