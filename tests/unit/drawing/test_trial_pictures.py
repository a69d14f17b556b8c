"""Which batch sizes trials had, and what they cost."""

import math
import re
from dataclasses import replace
from itertools import pairwise

import pytest

from bso.domain.trial import Outcome, TrialState
from bso.drawing import Link, choices, costs
from tests.unit.drawing.samples import (
    HARDWARE,
    SPEC,
    SVG,
    arm,
    assert_sound,
    description,
    kind,
    parsed,
    places,
    tooltips,
    trial,
    with_class,
    words,
)


def heights(picture: str, css_class: str) -> list[float]:
    """Where circles of a class are, from the top."""
    return [float(one.get("cy", "")) for one in with_class(picture, css_class) if one.find(f"{SVG}title") is not None]


def shapes(picture: str, css_class: str) -> set[tuple[str, int]]:
    """What marks of a class are drawn with: the element, and how many points it has."""
    return {
        (one.tag.removeprefix(SVG), len(re.findall("[ML]", one.get("d", "")))) for one in with_class(picture, css_class)
    }


def test_each_trial_has_a_mark_that_says_what_it_was() -> None:
    trials = [
        trial(12),
        trial(13, outcome=Outcome.COST_EXCEEDED, batch_size=16, cost=4.4e6),
        trial(14, outcome=None, batch_size=32, cost=200.0),
        trial(15, outcome=None, cost=0.0, state=TrialState.SUSPENDED),
        trial(16, outcome=Outcome.INTERRUPTED, cost=math.nan),
    ]
    assert tooltips(choices(trials, SPEC, best=None, name="a")) == [
        "trial 12: batch size 64, converged, 1.30 kJ",
        "trial 13: batch size 16, cost exceeded, 4.40 MJ",
        "trial 14: batch size 32, running, 200 J so far",
        "trial 15: batch size 64, suspended",
        "trial 16: batch size 64, interrupted",
    ]


def test_outcomes_differ_by_shape_and_the_legend_names_those_that_occur() -> None:
    trials = [trial(number, outcome=outcome) for number, outcome in enumerate([*Outcome, None], start=1)]
    picture = choices(trials, SPEC, best=None, name="a")
    classes = [*(f"bso-outcome-{outcome}" for outcome in Outcome), "bso-running"]
    drawn = [shapes(picture, one) for one in classes]
    assert all(len(one) == 1 for one in drawn), "the mark and its sample in the legend are alike"
    assert drawn[0] == drawn[-1] == {("circle", 0)}
    filled, ring = (with_class(picture, classes[end])[0].get("stroke") for end in (0, -1))
    assert (filled, ring) == (None, "currentColor")
    named = [*(str(outcome).replace("_", " ") for outcome in Outcome), "running"]
    assert [one for one in words(picture) if one in named] == named
    assert "infeasible" not in words(choices([trial(1)], SPEC, best=None, name="a"))


def test_no_two_outcomes_have_the_same_outline() -> None:
    def outline(outcome: Outcome) -> str:
        picture = choices([trial(1, outcome=outcome)], SPEC, best=None, name="a")
        [found] = [one for one in with_class(picture, f"bso-outcome-{outcome}") if one.find(f"{SVG}title") is not None]
        return found.get("d", "")

    assert len({outline(outcome) for outcome in Outcome}) == len(Outcome)


def test_a_result_that_came_late_counts() -> None:
    late = trial(1, outcome=Outcome.INTERRUPTED, late_outcome=Outcome.CONVERGED)
    assert tooltips(choices([late], SPEC, best=None, name="a")) == ["trial 1: batch size 64, converged, 1.30 kJ"]


def test_a_larger_batch_size_is_higher_and_a_later_trial_further_right() -> None:
    picture = choices([trial(2, batch_size=128), trial(1, batch_size=16)], SPEC, best=None, name="a")
    marks = [one for one in with_class(picture, "bso-outcome-converged") if one.find(f"{SVG}title") is not None]
    first, second = ((float(one.get("cx", "")), float(one.get("cy", ""))) for one in marks)
    assert first[0] < second[0]
    assert first[1] > second[1]


def test_the_rows_of_the_default_and_of_the_best_are_marked_and_named() -> None:
    picture = choices([trial(1), trial(2, batch_size=128)], SPEC, best=64, name="a")
    best, default = heights(picture, "bso-outcome-converged")
    band = [y for _, y in _points(with_class(picture, "bso-best")[0].get("d", ""))]
    assert min(band) < best < max(band)
    assert {y for _, y in _points(with_class(picture, "bso-default")[0].get("d", ""))} == {default}
    assert {"default (128)", "best now (64)"} <= set(words(picture))


def test_without_a_best_one_none_is_marked() -> None:
    picture = choices([trial(1)], SPEC, best=None, name="a")
    assert with_class(picture, "bso-best") == []
    assert "none is known to be the best yet" in description(picture)


def test_what_was_chosen_most_often_lately_is_said() -> None:
    trials = [trial(number, batch_size=16 if number <= 30 else 64) for number in range(1, 51)]
    assert description(choices(trials, SPEC, best=64, name="a")) == (
        "50 trials; batch size 64 was chosen most often lately. The default is 128, and 64 is the best one at present."
    )


def test_of_many_trials_the_last_are_drawn_and_the_description_says_so() -> None:
    trials = [trial(number) for number in range(1, 1235)]
    for picture in (choices(trials, SPEC, best=64, name="a"), costs(trials, kind(), SPEC, name="a")):
        shown = tooltips(picture)
        assert len(shown) == 150
        assert shown[0].startswith("trial 1085:")
        assert "The last 150 of 1 234 trials" in description(picture)


@pytest.mark.parametrize("is_of_costs", [False, True])
def test_a_mark_leads_to_the_page_of_its_trial(is_of_costs: bool) -> None:
    def draw(link: Link | None) -> str:
        if is_of_costs:
            return costs([trial(7)], kind(), SPEC, name="a", link=link)
        return choices([trial(7)], SPEC, best=None, name="a", link=link)

    picture = draw(lambda number: f'/jobs/a"b/trials/{number}?x=1&y=2')
    [link] = with_class(picture, "bso-link")
    assert link.get("href") == '/jobs/a"b/trials/7?x=1&y=2'
    assert link.get("aria-label") == link[0].findtext(f"{SVG}title") == tooltips(picture)[0]
    assert parsed(picture).get("role") == "group", "what is inside an image cannot be reached by a screen reader"
    assert with_class(draw(None), "bso-link") == []


def test_a_batch_size_that_the_job_no_longer_has_gets_a_row() -> None:
    picture = choices([trial(1, batch_size=48)], SPEC, best=96, name="a")
    assert {"48", "96"} <= set(words(picture))


@pytest.mark.parametrize("sizes", [(1,), tuple(range(1, 1001)), (1, 2**31 - 1)])
def test_labels_of_batch_sizes_keep_apart(sizes: tuple[int, ...]) -> None:
    spec = replace(SPEC, batch_sizes=sizes, default_batch_size=sizes[-1])
    picture = choices([trial(1, batch_size=sizes[0])], spec, best=sizes[0], name="a")
    assert_sound(picture)
    labels = [one for one in parsed(picture).iter(f"{SVG}text") if one.get("text-anchor") == "end"]
    at = sorted(float(one.get("y", "")) for one in labels)
    assert all(after - before >= 14.9 for before, after in pairwise(at))
    assert str(sizes[-1]) in [one.text for one in labels]


def test_a_cost_is_drawn_once_its_trial_has_ended_and_it_is_known() -> None:
    trials = [
        trial(1),
        trial(2, outcome=None),
        trial(3, cost=0.0),
        trial(4, cost=math.inf),
        trial(5, is_energy_complete=False),
        trial(6, hardware=replace(HARDWARE, gpu_model="H200")),
    ]
    picture = costs(trials, kind(), SPEC, name="a")
    assert tooltips(picture) == ["trial 1: batch size 64, converged, 1.30 kJ"]
    assert "Left out: 5 trials whose cost does not compare" in description(picture)


def test_costs_of_the_newest_version_do_not_stand_beside_those_of_earlier_ones() -> None:
    trials = [trial(1, version_number=1), trial(2, version_number=2)]
    assert tooltips(costs(trials, kind(), SPEC, name="a")) == ["trial 2: batch size 64, converged, 1.30 kJ"]


def test_an_expected_cost_has_a_band_which_is_open_where_nothing_was_tried() -> None:
    arms = (arm(16, mean=2000.0), arm(64), arm(32, trials=0), arm(128, mean=None), arm(8, mean=math.nan))
    picture = costs([trial(1)], kind(*arms), SPEC, name="a")
    assert tooltips(picture) == [
        "batch size 16: expected 2.00 ± 0.10 kJ, 3 trials",
        "batch size 64: expected 1.00 ± 0.10 kJ, 3 trials",
        "batch size 32: expected 1.00 ± 0.10 kJ, not tried yet",
        "trial 1: batch size 64, converged, 1.30 kJ",
    ]
    opened = [one for one in with_class(picture, "bso-untried") if one.get("fill") == "currentColor"]
    assert {(one.get("fill-opacity"), one.get("stroke-dasharray")) for one in opened} == {("0", "3 3")}
    assert {"expected ± std. deviation", "expected, not tried"} <= set(words(picture))


def test_a_cost_without_a_deviation_is_expected_without_a_band() -> None:
    assert tooltips(costs([], kind(arm(64, deviation=None)), SPEC, name="a")) == [
        "batch size 64: expected 1 kJ, 3 trials"
    ]


@pytest.mark.parametrize(
    ("paid", "labels"),
    [
        ((1000.0, 7000.0), ["0 J", "2 kJ", "4 kJ", "6 kJ"]),
        ((1000.0, 90_000.0), ["1 kJ", "2 kJ", "5 kJ", "10 kJ", "20 kJ", "50 kJ", "100 kJ"]),
        ((1e-9, 1e12), ["1 nJ", "1 µJ", "1 mJ", "1 J", "1 kJ", "1 MJ", "1 GJ", "1 TJ"]),
        ((5.0, 5.0), ["0 J", "1 J", "2 J", "3 J", "4 J", "5 J"]),
    ],
)
def test_the_axis_of_costs_is_logarithmic_where_they_differ_much(paid: tuple[float, ...], labels: list[str]) -> None:
    trials = [trial(number, cost=cost) for number, cost in enumerate(paid, start=1)]
    picture = costs(trials, kind(), SPEC, name="a")
    assert_sound(picture)
    assert [one for one in words(picture) if one.endswith("J")] == labels


def test_trials_of_one_batch_size_stand_side_by_side_and_always_at_the_same_place() -> None:
    trials = [trial(number) for number in range(1, 6)]
    picture = costs(trials, kind(), SPEC, name="a")
    across = [
        one.get("cx") for one in with_class(picture, "bso-outcome-converged") if one.find(f"{SVG}title") is not None
    ]
    assert len(set(across)) == 5
    assert picture == costs(trials, kind(), SPEC, name="a")


def test_the_description_says_what_is_best_and_what_is_expected_of_it() -> None:
    picture = costs([trial(1)], kind(arm(64), about_costs="a mean"), SPEC, name="a")
    assert description(picture) == (
        "Batch size 64 is the best one at present, expected to cost 1.00 ± 0.10 kJ. 1 trial with a cost on "
        "1 x V100 (300 W, energy nvml_counter). The expected cost is a mean."
    )
    assert "No batch size is known to be the best yet" in description(
        costs([trial(1)], kind(best=None), SPEC, name="a")
    )


def test_of_very_many_batch_sizes_those_that_matter_have_a_band() -> None:
    sizes = tuple(range(1, 1001))
    arms = [arm(size, trials=int(size in {700, 701})) for size in sizes]
    spec = replace(SPEC, batch_sizes=sizes, default_batch_size=500)
    picture = costs([], kind(*arms, best=333), spec, name="a")
    assert_sound(picture)
    named = {int(one.split()[2].rstrip(":")) for one in tooltips(picture)}
    assert {500, 333, 700, 701} <= named
    assert 50 <= len(named) <= 60


def test_a_band_far_wider_than_the_costs_does_not_flatten_them() -> None:
    picture = costs([trial(1, cost=500.0)], kind(arm(64, mean=400.0, deviation=1e9)), SPEC, name="a")
    assert_sound(picture)
    assert "500 J" in words(picture)
    assert max(x for x, _ in places(picture)) <= 720


def _points(steps: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (step.split() for step in re.findall(r"[ML]([^MLZ]+)", steps))]
