"""What all pictures have in common."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.trial import Outcome, Trial, TrialState
from bso.drawing import CLASSES, Size, choices, costs, curves, progress_of_cost, recurrences
from tests.unit.drawing.samples import (
    HARDWARE,
    HOSTILE,
    SPEC,
    SVG,
    arm,
    assert_sound,
    curve,
    description,
    kind,
    parsed,
    tooltips,
    trial,
    with_class,
    words,
)

TRIALS = [trial(number, outcome=[*Outcome, None][number % 7], batch_size=16 << number % 4) for number in range(1, 15)]
CURVES = [curve(1, [0.2, 0.5, 0.91]), curve(2, [0.1, 0.4], batch_size=32, is_running=True)]
POINTS = [(1.0, 100.0), (2.0, 200.0)]
PICTURES: dict[str, Callable[[str], str]] = {
    "choices": lambda name: choices(TRIALS, SPEC, best=64, name=name),
    "costs": lambda name: costs(TRIALS, kind(arm(16), arm(64, trials=0)), SPEC, name=name),
    "recurrences": lambda name: recurrences(TRIALS, SPEC, name=name),
    "curves": lambda name: curves(CURVES, SPEC, name=name),
    "progress_of_cost": lambda name: progress_of_cost(POINTS, bound=300.0, name=name),
}
EMPTY = {
    "choices": choices([], SPEC, best=None, name="a"),
    "costs": costs([], kind(best=None), SPEC, name="a"),
    "recurrences": recurrences([], SPEC, name="a"),
    "curves": curves([], SPEC, name="a"),
    "progress_of_cost": progress_of_cost([], bound=None, name="a"),
}


@pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES)
def test_a_picture_is_xml_that_does_nothing_and_needs_nothing(draw: Callable[[str], str]) -> None:
    assert_sound(draw("a"))


@pytest.mark.parametrize("picture", EMPTY.values(), ids=EMPTY)
def test_without_data_a_picture_says_what_will_appear(picture: str) -> None:
    assert_sound(picture)
    first, hint = words(picture)
    assert first.startswith("No ")
    assert "appears here" in hint
    assert description(picture) == f"{first}: {hint}."


@pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES)
def test_a_picture_has_a_name_and_a_description_that_it_is_labelled_by(draw: Callable[[str], str]) -> None:
    root = parsed(draw("a"))
    title, desc = root[0], root[1]
    assert (title.tag, desc.tag) == (f"{SVG}title", f"{SVG}desc")
    assert root.get("role") == "img"
    assert root.get("aria-labelledby", "").split() == [title.get("id"), desc.get("id")]
    assert title.text
    assert (desc.text or "").endswith(".")


@pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES)
@pytest.mark.parametrize(("one", "other"), [("a", "b"), ("a b", "a_20_b"), ("a/b", "a.b"), (HOSTILE, f"{HOSTILE} ")])
def test_pictures_of_different_names_share_no_id(draw: Callable[[str], str], one: str, other: str) -> None:
    first, second = ({element.get("id") for element in parsed(draw(name)).iter()} for name in (one, other))
    assert first & second == {None}
    assert not [found for found in first if found and " " in found]


@pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES)
def test_a_picture_fills_the_width_it_is_given_and_keeps_its_proportions(draw: Callable[[str], str]) -> None:
    root = parsed(draw("a"))
    assert (root.get("width"), root.get("height")) == ("100%", None)
    assert root.get("preserveAspectRatio") == "xMidYMid meet"


@pytest.mark.parametrize(("width", "height"), [(1200, 500), (480, 240)])
def test_a_picture_may_have_another_size(width: int, height: int) -> None:
    size = Size(width=width, height=height)
    for picture in (
        choices(TRIALS, SPEC, best=64, name="a", size=size),
        costs(TRIALS, kind(arm(64)), SPEC, name="a", size=size),
        recurrences(TRIALS, SPEC, name="a", size=size),
        curves(CURVES, SPEC, name="a", size=size),
        progress_of_cost(POINTS, bound=300.0, name="a", size=size),
        choices([], SPEC, best=None, name="a", size=size),
    ):
        assert_sound(picture, width=width, height=height)


def test_a_size_too_small_to_read_is_that_of_the_smallest_picture() -> None:
    assert Size(width=1, height=-5) == Size(width=480, height=240)


def test_the_classes_that_are_promised_are_those_that_are_drawn() -> None:
    many = replace(SPEC, batch_sizes=tuple(range(1, 9)), default_batch_size=1)
    drawn = [draw("a") for draw in PICTURES.values()]
    drawn.append(curves([curve(number, [0.5], batch_size=number) for number in many.batch_sizes], many, name="a"))
    drawn.append(choices(TRIALS, SPEC, best=64, name="a", link=str))
    assert [name for name in CLASSES if not any(with_class(picture, name) for picture in drawn)] == []


@pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES)
def test_a_page_can_change_each_colour_by_its_class(draw: Callable[[str], str]) -> None:
    for element in parsed(draw("a")).iter():
        painted = {element.get("fill"), element.get("stroke")} - {None, "none"}
        assert painted <= {"currentColor"}
        assert not painted or (element.get("class") and element.get("color"))


def test_hostile_names_are_shown_and_do_nothing() -> None:
    hardware = HardwareKind(gpu_model=HOSTILE, max_power_w=1.0, energy_method=EnergyMethod.RAPL)
    trials = [trial(1, recurrence_id=HOSTILE, hardware=hardware, reason=HOSTILE)]
    here = kind(arm(64), hardware=HOSTILE, hardware_key=hardware.key, about_costs=HOSTILE)
    pictures = [
        costs(trials, here, SPEC, name=HOSTILE, link=lambda _: HOSTILE),
        recurrences(trials, SPEC, name=HOSTILE),
        choices(trials, SPEC, best=64, name=HOSTILE, link=lambda _: HOSTILE),
    ]
    for picture in pictures:
        assert_sound(picture)
        assert "<script" not in picture
        assert "\x1b" not in picture
        assert "\u202e" not in picture
    shown = "</svg><script>alert('\"&\\x1b[2J\\u202e')</script>"
    assert shown in description(pictures[0])
    assert f"({shown})" in tooltips(pictures[1])[0]


def test_a_name_of_any_length_takes_a_bounded_place() -> None:
    here = kind(arm(64), hardware="x" * 10_000, about_costs="y" * 10_000)
    assert len(costs([trial(1)], here, SPEC, name="a")) < 8000
    assert len(recurrences([trial(1, recurrence_id="x" * 10_000)], SPEC, name="a")) < 4000


def test_a_page_of_all_pictures_of_a_long_history_has_about_two_thousand_nodes() -> None:
    outcomes = [*Outcome, None]
    trials = [
        trial(number, outcome=outcomes[number % 7], batch_size=16 << number % 4, recurrence_id=f"night-{number // 2}")
        for number in range(1, 1235)
    ]
    arms = [arm(size) for size in range(1, 1001)]
    runs = [curve(number, [math.sin(epoch) for epoch in range(5000)]) for number in range(100)]
    drawn = [
        choices(trials, SPEC, best=64, name="a", link=str),
        costs(trials, kind(*arms), SPEC, name="a", link=str),
        recurrences(trials, SPEC, name="a"),
        curves(runs, SPEC, name="a", link=str),
        progress_of_cost([(float(epoch), 1.0 + epoch) for epoch in range(100_000)], bound=5.0, name="a"),
    ]
    assert sum(len(list(parsed(picture).iter())) for picture in drawn) <= 2000
    assert sum(map(len, drawn)) <= 400_000


NUMBERS = st.floats(width=64)
TRIAL = st.builds(
    lambda number, outcome, state, size, cost, night, version, hardware: trial(
        number,
        outcome=outcome if state is TrialState.ENDED else None,
        state=state,
        batch_size=size,
        cost=cost,
        recurrence_id=night,
        version_number=version,
        hardware=replace(HARDWARE, gpu_model=hardware),
    ),
    st.integers(1, 10**9),
    st.sampled_from(Outcome),
    st.sampled_from(TrialState),
    st.integers(1, 2**31 - 1),
    NUMBERS,
    st.text(max_size=8),
    st.integers(1, 2),
    st.sampled_from(["V100", "H200"]),
)
SEVERAL = st.lists(TRIAL, max_size=12, unique_by=lambda one: one.trial_number)
SIZES = st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=40, unique=True).map(lambda one: tuple(sorted(one)))
ARMS = st.lists(
    st.builds(arm, st.integers(1, 2**31 - 1), mean=NUMBERS, deviation=NUMBERS, trials=st.integers(0, 3)), max_size=8
)


@given(trials=SEVERAL, sizes=SIZES, arms=ARMS, best=st.none() | st.integers(1, 2**31 - 1), name=st.text(max_size=8))
def test_any_trials_make_sound_pictures(
    trials: list[Trial], sizes: tuple[int, ...], arms: list[object], best: int | None, name: str
) -> None:
    spec = replace(SPEC, batch_sizes=sizes, default_batch_size=sizes[-1])
    assert_sound(choices(trials, spec, best=best, name=name))
    assert_sound(costs(trials, kind(arms=tuple(arms), best=best), spec, name=name, link=str))
    assert_sound(recurrences(trials, spec, name=name))


@given(
    lines=st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=300), max_size=4),
    target=st.floats(-1e300, 1e300),
    bound=st.none() | NUMBERS,
    is_running=st.booleans(),
)
def test_any_points_make_sound_pictures(
    lines: list[list[tuple[float, float]]], target: float, bound: float | None, is_running: bool
) -> None:
    runs = [replace(curve(number, []), points=tuple(line), is_running=is_running) for number, line in enumerate(lines)]
    assert_sound(curves(runs, replace(SPEC, target_metric=target), name="a"))
    for line in lines:
        assert_sound(progress_of_cost(line, bound=bound, name="a"))
