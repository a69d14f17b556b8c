"""The metric and the cost of trainings over their epochs."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso.drawing import curves, progress_of_cost
from bso.drawing.curve_pictures import thinned
from tests.unit.drawing.samples import SPEC, SVG, assert_sound, curve, description, parsed, tooltips, with_class, words


def steps(picture: str, css_class: str) -> list[int]:
    """How many points the lines of a class have, samples in the legend included."""
    return [len(re.findall("[ML]", one.get("d", ""))) for one in with_class(picture, css_class) if one.get("d")]


def test_what_runs_is_drawn_strong_with_a_ring_and_what_has_ended_thin() -> None:
    runs = [curve(5, [0.1, 0.5], is_running=True), curve(6, [0.2, 0.95])]
    picture = curves(runs, SPEC, name="a")
    assert_sound(picture)
    lines = [one for one in with_class(picture, "bso-run-2") if one.tag == f"{SVG}path"]
    assert [one.get("stroke-width") for one in lines[:2]] == ["1.3", "3"], "what runs lies on top"
    assert [one.get("stroke-opacity") for one in lines[:2]] == ["0.6", None]
    [ring] = [one for one in with_class(picture, "bso-run-2") if one.tag == f"{SVG}circle"]
    assert ring.get("stroke") == "currentColor"
    assert "running" in words(picture)


def test_a_line_says_of_which_trial_it_is_and_leads_to_its_page() -> None:
    runs = [curve(6, [0.2, 0.95]), curve(7, [0.1], is_running=True)]
    picture = curves(runs, SPEC, name="a", link=lambda number: f"/trials/{number}")
    assert tooltips(picture) == [
        "trial 6: batch size 64, ended, metric 0.95 at epoch 2",
        "trial 7: batch size 64, running, metric 0.1 at epoch 1",
    ]
    assert [one.get("href") for one in with_class(picture, "bso-link")] == ["/trials/6", "/trials/7"]


def test_the_target_is_a_line_inside_the_picture() -> None:
    picture = curves([curve(1, [0.1, 0.2])], SPEC, name="a")
    line = with_class(picture, "bso-target")[0]
    at = {float(step.split()[1]) for step in re.findall(r"[ML]([^MLZ]+)", line.get("d", ""))}
    assert len(at) == 1
    assert 27 < at.pop() < 256
    assert "target 0.9" in words(picture)


def test_a_batch_size_keeps_its_class_whatever_else_is_drawn() -> None:
    alone = curves([curve(1, [0.1, 0.2], batch_size=64)], SPEC, name="a")
    beside = curves([curve(1, [0.1, 0.2], batch_size=64), curve(2, [0.1, 0.2], batch_size=16)], SPEC, name="a")
    assert with_class(alone, "bso-run-2")
    assert with_class(beside, "bso-run-2")
    assert with_class(beside, "bso-run-0")


def test_lines_of_the_same_colour_differ_by_their_dashes_and_the_legend_stays_short() -> None:
    spec = replace(SPEC, batch_sizes=tuple(range(1, 25)), default_batch_size=1)
    picture = curves([curve(size, [0.1, 0.2], batch_size=size) for size in spec.batch_sizes], spec, name="a")
    dashes = {one.get("stroke-dasharray") for one in with_class(picture, "bso-run-0")}
    assert len(dashes) == 3
    assert len([one for one in words(picture) if one.startswith("batch size ")]) == 7
    assert "17 more sizes" in words(picture)


def test_metrics_that_are_not_finite_are_left_out_and_counted() -> None:
    picture = curves([curve(1, [0.1, math.nan, 0.3, math.inf])], SPEC, name="a")
    assert steps(picture, "bso-run-2")[0] == 2
    assert description(picture) == (
        "1 trial, 0 running; the best metric is 0.3, the target 0.9. Left out: 2 metrics not finite."
    )


def test_trials_without_a_finite_metric_leave_a_picture_of_words() -> None:
    picture = curves([curve(1, [math.nan])], SPEC, name="a")
    assert words(picture) == ["No finite metric yet", "the metric of the first epoch appears here"]


def test_where_less_is_better_the_best_metric_is_the_lowest() -> None:
    picture = curves([curve(1, [0.7, 0.3])], replace(SPEC, higher_is_better_metric=False), name="a")
    assert "the best metric is 0.3" in description(picture)


def test_a_single_point_can_be_seen() -> None:
    picture = curves([curve(1, [0.5])], SPEC, name="a")
    assert [one.tag for one in with_class(picture, "bso-run-2")].count(f"{SVG}circle") == 1


def test_of_many_trials_those_that_run_and_the_last_ones_are_drawn() -> None:
    runs = [curve(number, [0.1, 0.2], is_running=number == 1) for number in range(1, 101)]
    picture = curves(runs, SPEC, name="a")
    named = [one.partition(":")[0] for one in tooltips(picture)]
    assert (len(named), named[0], named[-1]) == (40, "trial 62", "trial 1")
    assert "40 of 100 trials, 1 running" in description(picture)


@pytest.mark.parametrize("metrics", [[1e12, 1e12], [1e-9, 2e-9], [0.0], [-1e300, 1e300], [0.9, 0.9 + 1e-16]])
def test_any_metrics_have_an_axis_with_labels_that_differ(metrics: list[float]) -> None:
    picture = curves([curve(1, metrics)], SPEC, name="a")
    assert_sound(picture)
    labels = [one.text for one in parsed(picture).iter(f"{SVG}text") if one.get("text-anchor") == "end"]
    assert len(labels) == len(set(labels)) >= 2


def test_a_long_line_is_thinned() -> None:
    picture = curves([curve(1, [math.sin(epoch) for epoch in range(5000)])], SPEC, name="a")
    assert 100 < steps(picture, "bso-run-2")[0] <= 200


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=1000))
def test_thinning_keeps_the_ends_the_extremes_and_the_order(metrics: list[float]) -> None:
    points = list(enumerate(metrics))
    kept = thinned(points, 50)
    assert len(kept) <= 50
    assert kept == sorted(set(kept) & set(points))
    assert {points[0], points[-1]} <= set(kept)
    assert {max(metrics), min(metrics)} <= {metric for _, metric in kept}


def test_the_cost_of_a_trial_is_drawn_below_its_bound() -> None:
    picture = progress_of_cost([(2.0, 1300.0), (1.0, 600.0), (3.0, math.nan)], bound=2000.0, name="a")
    assert_sound(picture)
    assert description(picture) == "1.30 kJ until epoch 2; that is 65% of the bound, 2 kJ."
    assert tooltips(picture)[-1] == "epoch 2: 1.30 kJ"
    assert {"cost so far", "bound, 2 kJ"} <= set(words(picture))
    line = with_class(picture, "bso-bound")[0]
    assert len({step.split()[1] for step in re.findall(r"[ML]([^MLZ]+)", line.get("d", ""))}) == 1


@pytest.mark.parametrize("bound", [None, math.inf, math.nan])
def test_without_a_bound_the_description_says_so(bound: float | None) -> None:
    picture = progress_of_cost([(1.0, 600.0)], bound=bound, name="a")
    assert description(picture) == "600 J until epoch 1; no bound."
    assert with_class(picture, "bso-bound") == []
