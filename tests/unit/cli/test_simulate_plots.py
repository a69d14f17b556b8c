"""The pictures of ``bso simulate --plots``."""

from pathlib import Path
from typing import Any

import pytest

from bso.domain.policies import own_policies
from bso.simulator import parse_drift
from bso.simulator.study import Case, StudySettings, study
from bso_cli.simulating.plots import draw, draw_costs
from tests.unit.simulator.problems import make

PROBLEM = make({16: (9, 10, 11), 32: (5, 6), 64: (8, 9), 128: (20, 22)})


def test_a_name_in_a_picture_is_neither_a_formula_nor_obeyed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    settings = StudySettings(recurrences=2)
    results = study([Case(name="$\\frac{a\x1b[2J$", problem=PROBLEM)], [4], settings)
    assert len(draw(results, tmp_path, is_named=False)) == 3


@pytest.mark.parametrize("policy", own_policies())
def test_the_cost_curve_shows_what_the_policy_expects_and_how_uncertain_that_is(policy: str) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    settings = StudySettings(spec_overrides={"policy": policy}, recurrences=12, drift=parse_drift("epochs:x2@6"))
    [result] = study([Case(name="shapes/g1", problem=PROBLEM)], [4], settings)
    axes: Any = Figure().subplots()
    draw_costs(axes, result)
    lines = {line.get_label(): line for line in axes.get_lines()}
    run = result.runs[0]
    expected = lines["expected ± 95 %, seed 4"]
    assert list(expected.get_xdata()) == sorted(run.expected)
    assert list(expected.get_ydata()) == [run.expected[size].cost for size in sorted(run.expected)]
    _, band = axes.collections
    low, high = band.get_paths()[0].get_extents().intervaly
    most = max(one.cost + 1.96 * one.deviation for one in run.expected.values())
    assert 0 < low < high == pytest.approx(most)
    assert list(lines["mean of a model"].get_ydata()) == list(run.mean_costs.values())
