from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso.domain.commands import PowerMeasurement
from bso.domain.power_sweep import (
    Action,
    CloseWindow,
    DropWindow,
    OpenWindow,
    Plan,
    Profiling,
    ProfilingPhase,
    SetLimit,
    begin_profiling,
    begin_step,
    end_epoch,
    is_low_enough,
    limits_between,
    resume_at,
)

PLAN = Plan(limits_w=(300, 200, 100), wait_steps=1, warmup_steps=2, profile_steps=3)


def train(state: Profiling, steps: int) -> tuple[Profiling, list[tuple[int, Action]]]:
    """Begin this many steps; returns before which step (from 0) each action came."""
    happened: list[tuple[int, Action]] = []
    for step in range(steps):
        state, todo = begin_step(state)
        happened += [(step, action) for action in todo]
    return state, happened


def test_every_limit_is_warmed_up_and_measured_from_the_highest_to_the_lowest() -> None:
    state, happened = train(begin_profiling(PLAN), 17)
    assert happened == [
        (1, SetLimit(limit_w=300)),
        (3, OpenWindow()),
        (6, CloseWindow(limit_w=300, steps=3)),
        (6, SetLimit(limit_w=200)),
        (8, OpenWindow()),
        (11, CloseWindow(limit_w=200, steps=3)),
        (11, SetLimit(limit_w=100)),
        (13, OpenWindow()),
        (16, CloseWindow(limit_w=100, steps=3)),
    ]
    assert state.is_done
    assert train(state, 10) == (state, [])


def test_without_waiting_and_warming_up_the_first_step_is_measured() -> None:
    plan = Plan(limits_w=(300,), wait_steps=0, warmup_steps=0, profile_steps=1)
    _, happened = train(begin_profiling(plan), 2)
    assert happened == [(0, SetLimit(limit_w=300)), (0, OpenWindow()), (1, CloseWindow(limit_w=300, steps=1))]


def test_between_epochs_the_resting_limit_is_set_and_nothing_is_measured_under_it() -> None:
    state, before = train(begin_profiling(replace(PLAN, resting_w=150)), 10)
    state, between = end_epoch(state, is_step_complete=True)
    assert between == (DropWindow(), SetLimit(limit_w=150))
    state, after = train(state, 12)
    measured = [action.limit_w for _, action in before + after if isinstance(action, CloseWindow)]
    assert (state.is_done, measured) == (True, [300, 200, 100])


def test_the_end_of_an_epoch_drops_a_partial_window_and_the_limit_resumes_in_the_next_epoch() -> None:
    state, _ = train(begin_profiling(PLAN), 10)  # one of three steps at 200 W is measured
    state, todo = end_epoch(state, is_step_complete=True)
    assert todo == (DropWindow(), SetLimit(limit_w=300))  # evaluation is not slowed down
    assert state.phase is ProfilingPhase.WAITING

    _, happened = train(state, 6)
    assert happened[:3] == [(0, SetLimit(limit_w=200)), (2, OpenWindow()), (5, CloseWindow(limit_w=200, steps=3))]


def test_the_end_of_an_epoch_during_a_warm_up_starts_it_again() -> None:
    state, _ = train(begin_profiling(PLAN), 2)
    state, todo = end_epoch(state, is_step_complete=True)
    assert todo == (SetLimit(limit_w=300),)
    assert train(state, 3)[1] == [(0, SetLimit(limit_w=300)), (2, OpenWindow())]


def test_a_window_with_all_its_steps_is_closed_by_the_end_of_the_epoch() -> None:
    state, _ = train(begin_profiling(PLAN), 6)
    state, todo = end_epoch(state, is_step_complete=True)
    assert todo == (CloseWindow(limit_w=300, steps=3), SetLimit(limit_w=200), SetLimit(limit_w=300))
    assert state.limit_w == 200


def test_a_last_step_that_was_left_halfway_does_not_count() -> None:
    state, _ = train(begin_profiling(PLAN), 6)
    _, todo = end_epoch(state, is_step_complete=False)
    assert todo == (DropWindow(), SetLimit(limit_w=300))


def test_the_end_of_an_epoch_may_be_the_end_of_the_profile() -> None:
    state, _ = train(begin_profiling(PLAN), 16)
    state, todo = end_epoch(state, is_step_complete=True)
    assert todo == (CloseWindow(limit_w=100, steps=3),)
    assert state.is_done
    assert end_epoch(state, is_step_complete=True) == (state, ())


def test_waiting_goes_on_over_the_end_of_an_epoch() -> None:
    plan = Plan(limits_w=(300,), wait_steps=5, warmup_steps=0, profile_steps=2)
    state, _ = train(begin_profiling(plan), 3)
    state, todo = end_epoch(state, is_step_complete=True)
    assert todo == ()
    assert train(state, 3)[1] == [(2, SetLimit(limit_w=300)), (2, OpenWindow())]


@pytest.mark.parametrize(
    ("steps", "is_step_complete", "warmup_steps", "profile_steps"),
    [(4, True, 1, 3), (5, False, 1, 3), (1, True, 0, 1), (5, True, 2, 3)],
)
def test_an_epoch_too_short_for_one_limit_gives_it_fewer_steps(
    steps: int, is_step_complete: bool, warmup_steps: int, profile_steps: int
) -> None:
    state = resume_at(begin_profiling(PLAN), position=1, plan=PLAN)
    state, _ = train(state, steps)
    state, _ = end_epoch(state, is_step_complete=is_step_complete)
    assert (state.plan.warmup_steps, state.plan.profile_steps) == (warmup_steps, profile_steps)


def test_a_limit_that_began_in_the_middle_of_an_epoch_keeps_its_steps() -> None:
    state, _ = train(begin_profiling(PLAN), 8)
    state, _ = end_epoch(state, is_step_complete=True)
    assert state.plan == PLAN


def test_ranks_resume_at_what_they_have_agreed_on() -> None:
    state, _ = train(begin_profiling(PLAN), 17)
    assert resume_at(state, position=2, plan=PLAN).limit_w == 100
    assert resume_at(begin_profiling(PLAN), position=3, plan=PLAN).is_done


@pytest.mark.parametrize(
    ("highest_w", "lowest_w", "limits_w"),
    [
        (300, 100, (300, 275, 250, 225, 200, 175, 150, 125, 100)),
        (260, 200, (260, 235, 210, 200)),  # the lowest belongs to them
        (200, 200, (200,)),
    ],
)
def test_limits_go_down_by_the_step(highest_w: float, lowest_w: float, limits_w: tuple[float, ...]) -> None:
    assert limits_between(highest_w, lowest_w, step_w=25) == limits_w


@given(
    epochs=st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=40),
    wait_steps=st.integers(0, 3),
    warmup_steps=st.integers(0, 4),
    profile_steps=st.integers(1, 5),
)
def test_whatever_the_epochs_are_windows_open_and_close_in_turn_and_limits_only_fall(
    epochs: list[tuple[int, bool]], wait_steps: int, warmup_steps: int, profile_steps: int
) -> None:
    limits_w = (300.0, 200.0, 100.0)
    plan = Plan(limits_w=limits_w, wait_steps=wait_steps, warmup_steps=warmup_steps, profile_steps=profile_steps)
    state, happened = begin_profiling(plan), list[Action]()
    for steps, is_step_complete in epochs:
        state, more = train(state, steps)
        happened += [action for _, action in more]
        state, todo = end_epoch(state, is_step_complete=is_step_complete)
        happened += todo
        assert not state.is_under_test  # no limit under test and no window outlives an epoch
    windows = [action for action in happened if not isinstance(action, SetLimit)]
    for first, second in pairwise(windows):
        assert isinstance(first, OpenWindow) != isinstance(second, OpenWindow)
    closed = [action.limit_w for action in windows if isinstance(action, CloseWindow)]
    assert closed == list(limits_w[: len(closed)])
    assert state.is_done == (len(closed) == 3)


@given(steps=st.integers(2, 60), warmup_steps=st.integers(0, 30), profile_steps=st.integers(1, 60))
def test_a_profile_is_complete_after_at_most_two_epochs_per_limit_however_short_they_are(
    steps: int, warmup_steps: int, profile_steps: int
) -> None:
    plan = Plan(limits_w=(300, 200, 100), wait_steps=1, warmup_steps=warmup_steps, profile_steps=profile_steps)
    state = begin_profiling(plan)
    for _ in range(6):
        state, _ = train(state, steps)
        state, _ = end_epoch(state, is_step_complete=False)
    assert state.is_done


def under(limit_w: float, *, time_s: float, energy_j: float) -> PowerMeasurement:
    """What a sample takes under a limit."""
    return PowerMeasurement(power_limit_w=limit_w, average_power_w=energy_j / time_s, samples_per_s=1.0 / time_s)


HIGH = (under(300, time_s=1.0, energy_j=200), under(250, time_s=1.05, energy_j=180))
SLIGHTLY_MORE = under(200, time_s=1.2, energy_j=190)
MUCH_MORE = under(150, time_s=1.6, energy_j=240)


def test_lower_limits_are_of_no_use_once_two_in_a_row_take_more_time_and_energy_and_the_second_much_more() -> None:
    assert is_low_enough((*HIGH, SLIGHTLY_MORE, MUCH_MORE))


@pytest.mark.parametrize(
    "measured",
    [
        (),
        HIGH[:1],
        HIGH,
        (*HIGH, SLIGHTLY_MORE),
        (*HIGH, MUCH_MORE),
        (*HIGH, MUCH_MORE, under(100, time_s=1.3, energy_j=170)),
        (*HIGH, under(200, time_s=1.5, energy_j=179), under(150, time_s=3.0, energy_j=179)),
        (*HIGH, SLIGHTLY_MORE, under(150, time_s=1.19, energy_j=300)),
    ],
    ids=["nothing", "one", "two", "a little", "one alone", "held up once", "slower, and less energy", "nearly as fast"],
)
def test_lower_limits_are_measured_as_long_as_they_may_be_of_use(measured: tuple[PowerMeasurement, ...]) -> None:
    assert not is_low_enough(measured)
