"""What each recurrence cost."""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

from bso.domain.trial import Outcome, Trial
from bso.drawing import recurrences
from tests.unit.drawing.samples import (
    HARDWARE,
    SPEC,
    SVG,
    assert_sound,
    description,
    tooltips,
    trial,
    with_class,
    words,
)

RETRIED = [
    trial(1, outcome=Outcome.COST_EXCEEDED, cost=500.0, recurrence_id="monday", batch_size=16),
    trial(2, outcome=Outcome.NOT_CONVERGED, cost=250.0, recurrence_id="monday", batch_size=32),
    trial(3, cost=1000.0, recurrence_id="monday"),
]


def bars(picture: str, css_class: str) -> list[ET.Element]:
    """The parts of bars with a class, without its sample in the legend."""
    return [one for one in with_class(picture, css_class) if one.find(f"{SVG}title") is not None]


def span(bar: ET.Element) -> tuple[float, float]:
    """Where a part of a bar begins and ends, from the bottom up."""
    at = [float(step.split()[1]) for step in re.findall(r"[ML]([^MLZ]+)", bar.get("d", ""))]
    return max(at), min(at)


def test_the_aborted_trainings_stand_above_the_one_that_converged() -> None:
    picture = recurrences(RETRIED, SPEC, name="a")
    assert_sound(picture)
    [model], [aborted] = bars(picture, "bso-model"), bars(picture, "bso-aborted")
    assert span(model)[1] == span(aborted)[0]
    low, high = (start - end for start, end in (span(aborted), span(model)))
    assert abs(low / high - 0.75) < 0.01
    assert (model.get("stroke"), aborted.get("stroke")) == (None, "currentColor")
    assert aborted.get("fill-opacity") == "0.25"
    assert {"the training that converged", "other trainings"} <= set(words(picture))


def test_a_bar_says_what_its_recurrence_cost() -> None:
    running = trial(4, outcome=None, cost=100.0, recurrence_id="tuesday")
    said = tooltips(recurrences([*RETRIED, running], SPEC, name="a"))
    assert said[0] == (
        "recurrence 1 (monday): 1.75 kJ, 1 kJ of it for the model with batch size 64, the rest for 2 other trainings"
    )
    assert said[-1] == "recurrence 2 (tuesday): 100 J for 1 training, no model yet"


def test_what_is_running_has_an_open_bar() -> None:
    picture = recurrences([trial(1, outcome=None, cost=100.0)], SPEC, name="a")
    [bar] = bars(picture, "bso-running")
    assert (bar.get("fill-opacity"), bar.get("stroke-dasharray")) == ("0", "3 3")
    assert "none of them has a model yet" in description(picture)


def test_recurrences_stand_in_the_order_in_which_they_began() -> None:
    trials = [trial(3, recurrence_id="a"), trial(1, recurrence_id="z"), trial(2, recurrence_id="m")]
    said = tooltips(recurrences(trials, SPEC, name="a"))
    assert [one.partition(":")[0] for one in said] == ["recurrence 1 (z)", "recurrence 2 (m)", "recurrence 3 (a)"]


def test_a_line_shows_the_mean_cost_with_the_default_batch_size() -> None:
    trials = [trial(1, batch_size=128, cost=2000.0), trial(2, batch_size=128, cost=4000.0), trial(3, cost=1500.0)]
    picture = recurrences(trials, SPEC, name="a")
    assert "default, mean of 2 trainings" in words(picture)
    assert description(picture) == (
        "3 recurrences; the training of the last model cost 1.50 kJ with batch size 64, "
        "50% less than the mean of 2 trainings with the default, 128."
    )
    costlier = recurrences([*trials[:2], trial(3, cost=3300.0)], SPEC, name="a")
    assert "10% more than the mean" in description(costlier)


def test_the_mean_of_the_default_leaves_out_what_does_not_compare() -> None:
    other = replace(HARDWARE, gpu_model="H200")
    trials = [
        trial(1, batch_size=128, outcome=Outcome.COST_EXCEEDED),
        trial(2, batch_size=128, hardware=other),
        trial(3, batch_size=128, version_number=0),
        trial(4, batch_size=128, is_energy_complete=False),
        trial(5),
    ]
    picture = recurrences(trials, SPEC, name="a")
    assert with_class(picture, "bso-default") == []
    assert "They ran on 2 hardware kinds, whose costs do not compare." in description(picture)


def test_of_many_trials_whole_recurrences_are_drawn_and_the_numbers_go_on() -> None:
    trials = [_of_two(number) for number in range(1, 402)]
    picture = recurrences(trials, SPEC, name="a")
    assert "The last 75 of 201 recurrences" in description(picture)
    numbers = {one.split()[1] for one in tooltips(picture)}
    assert (len(numbers), "201" in numbers, "126" in numbers) == (75, True, False)


def test_a_recurrence_of_very_many_trials_is_drawn_alone() -> None:
    trials = [trial(number, outcome=Outcome.INTERRUPTED, recurrence_id="a") for number in range(1, 300)]
    picture = recurrences([*trials, trial(300, recurrence_id="a")], SPEC, name="a")
    assert len(bars(picture, "bso-model")) == 1
    assert len(bars(picture, "bso-aborted")) == 1


def _of_two(number: int) -> Trial:
    return trial(
        number,
        outcome=Outcome.CONVERGED if number % 2 == 0 else Outcome.COST_EXCEEDED,
        recurrence_id=f"{-(-number // 2)}",
    )
