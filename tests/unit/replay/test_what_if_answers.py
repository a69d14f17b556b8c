"""What alternatives would have cost, against worlds in which it is known what they do cost."""

from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any

import pytest

from bso.domain.commands import PowerMeasurement
from bso.domain.job_spec import InvalidSpec
from bso.domain.policies import PolicyMissing
from bso.replay.what_if.answers import AS_IT_IS, AlternativeTotals, Estimate, alternatives, play
from bso.replay.what_if.history import record_of
from bso.replay.what_if.record import End, NotRecorded, Record
from bso.simulator import Run, simulate
from tests.unit.replay.records import record, run
from tests.unit.replay.recurring_job import folded
from tests.unit.simulator.problems import make

WILD = make({32: (5, 6, 7, 14), 64: (7, 8, 9, 18), 128: (9, 10, 11, 12)})
"""A world in which some trainings take so much longer than others that they are stopped."""

KNOWN = record([run(16, 9), run(16, 10), run(32, 5), run(32, 6), run(64, 8), run(128, 2, End.CENSORED)])


def lives(known: Record) -> list[Run]:
    """The lives that are simulated of a job as it is."""
    seen: list[Run] = []
    play(known, alternatives(known), seeds=3, recurrences=2, processes=1, on_done=seen.append)
    return seen


def answered(
    known: Record, *, seeds: int = 4, recurrences: int = 5, processes: int = 1, **asked: Any
) -> dict[str, AlternativeTotals]:
    found = play(known, alternatives(known, **asked), seeds=seeds, recurrences=recurrences, processes=processes)
    return {answer.alternative.name: answer for answer in found}


def test_a_batch_size_that_always_takes_as_long_costs_exactly_that() -> None:
    """6 epochs of 10 s and 1000 J with at most 200 W: half of 6 kJ and half of 12 kJ."""
    answer = answered(record([run(64, 6), run(64, 6)]))[AS_IT_IS]
    assert answer.cost_j == Estimate(mean=9_000.0, low=9_000.0, high=9_000.0)
    assert answer.energy_j is not None
    assert (answer.energy_j.mean, answer.time_s.mean, answer.trials.mean) == (6_000.0, 60.0, 1.0)
    assert answer.choices == {64: 1.0}
    assert answer.more_cost_j is None


def test_another_eta_is_compared_by_its_own_cost() -> None:
    found = answered(record([run(64, 6), run(64, 6)]), eta_knobs=[1.0, 0.0])
    energy, time = found["eta 1"], found["eta 0"]
    assert (energy.cost_j.mean, time.cost_j.mean) == (6_000.0, 12_000.0)
    for answer in (energy, time):
        assert answer.more_cost_j == Estimate(mean=0.0, low=0.0, high=0.0)


def test_without_any_energy_only_time_can_be_asked_about() -> None:
    """Power limits may have been profiled: a simulated life does without them."""
    profile = tuple(
        PowerMeasurement(power_limit_w=watts, average_power_w=watts, samples_per_s=watts) for watts in (100.0, 200.0)
    )
    bare = [replace(run(64, 6), energy_j=0.0, is_energy_measured=False) for _ in range(2)]
    known = record(bare, eta_knob=0.0, measurements={64: profile})
    found = answered(known, policies=["pruning_thompson", "curve"])
    for name in (AS_IT_IS, "policy curve"):
        answer = found[name]
        assert (answer.cost_j.mean, answer.time_s.mean, answer.energy_j) == (12_000.0, 60.0, None)
    with pytest.raises(NotRecorded, match="the energy of job nightly was not measured: only eta 0 can be answered"):
        alternatives(known, eta_knobs=[0.5])


@pytest.mark.parametrize("eta_knob", [0.0, 0.5, 1.0])
def test_by_another_eta_another_power_limit_is_best(eta_knob: float) -> None:
    """A job whose trainings always take as long ran under the limit that is best by 0.5; it had profiled both."""
    problem = make({64: (6,)})
    known = record_of(folded(problem, recurrences=3, seed=1))
    name = AS_IT_IS if eta_knob == 0.5 else f"eta {eta_knob:g}"
    answer = answered(known, eta_knobs=[eta_knob], recurrences=3)[name]
    spec = {"policy": "pruning_thompson", "eta_knob": eta_knob}
    truth = simulate(problem, spec, recurrences=3, seed=1)
    assert answer.cost_j.mean == pytest.approx(fmean(truth.costs))
    assert answer.cost_j.low == pytest.approx(answer.cost_j.high)
    assert answer.time_s.mean == pytest.approx(sum(trial.time_s for trial in truth.trials) / 3)


def test_a_knob_that_changes_nothing_makes_no_difference_because_luck_is_shared() -> None:
    known = record([run(64, 6), run(64, 9), run(32, 5), run(32, 8)])
    answer = answered(known, changes={"window_size": 1000})["window size 1000"]
    assert answer.cost_j.low < answer.cost_j.high
    assert answer.more_cost_j == Estimate(mean=0.0, low=0.0, high=0.0)


def test_a_batch_size_that_was_tried_once_is_answered_with_a_wider_interval() -> None:
    once, often = (answered(record([run(64, 20)] * times), seeds=40)[AS_IT_IS].cost_j for times in (1, 20))
    assert often.low == often.high == pytest.approx(30_000.0)
    assert once.mean == pytest.approx(30_000.0, rel=0.15)
    assert once.low < 27_000.0
    assert once.high > 33_000.0


def test_where_most_batch_sizes_were_tried_once_policies_are_compared_with_all_of_them() -> None:
    known = record([run(64, 9), run(32, 6), run(32, 6), run(32, 7), run(16, 9), run(128, 12, End.CENSORED)])
    found = answered(known, policies=["curve"], seeds=6, recurrences=12)
    assert found[AS_IT_IS].choices.keys() == found["policy curve"].choices.keys() == {16, 32, 64, 128}
    assert found[AS_IT_IS].choices[128] > 0  # pruning_thompson tries each
    assert found["policy curve"].more_cost_share is not None


def test_of_a_cost_of_nothing_there_is_no_share() -> None:
    """By eta_knob 1 energy alone counts, and the meter always said 0 J."""
    known = record([replace(run(64, 6), energy_j=0.0), replace(run(64, 7), energy_j=0.0)], eta_knob=1.0)
    answer = answered(known, policies=["curve"], eta_knobs=[0.5])["policy curve, eta 0.5"]
    assert answer.cost_j.mean > 0
    assert answer.more_cost_share is not None
    free = answered(known, policies=["curve"])["policy curve"]
    assert free.more_cost_j is not None
    assert (free.cost_j.mean, free.more_cost_j.mean, free.more_cost_share) == (0.0, 0.0, None)


def test_every_combination_is_compared_and_named_by_what_it_changes() -> None:
    found = alternatives(KNOWN, policies=["pruning_thompson", "curve"], beta_knobs=[2.0, None], eta_knobs=[0.5, 0.25])
    assert [one.name for one in found] == [
        AS_IT_IS,
        "never stopped early",
        "eta 0.25",
        "eta 0.25, never stopped early",
        "policy curve",
        "policy curve, never stopped early",
        "policy curve, eta 0.25",
        "policy curve, eta 0.25, never stopped early",
    ]
    assert (found[-1].spec.policy, found[-1].spec.eta_knob, found[-1].spec.beta_knob) == ("curve", 0.25, None)


def test_values_that_differ_in_their_last_digits_are_different_alternatives() -> None:
    found = alternatives(KNOWN, eta_knobs=[0.1234567, 0.12345678, 0.1234567])
    assert [one.name for one in found] == [AS_IT_IS, "eta 0.1234567", "eta 0.12345678"]


def test_batch_sizes_of_which_too_little_is_known_are_left_out() -> None:
    [as_it_is] = alternatives(KNOWN)
    assert as_it_is.batch_sizes == (16, 32, 64)
    [_, fewer] = alternatives(KNOWN, changes={"batch_sizes": [32, 64]})
    assert (fewer.name, fewer.batch_sizes) == ("batch sizes 32,64", (32, 64))


def test_a_job_with_its_default_batch_size_left_out_begins_with_the_next_smaller_one() -> None:
    known = record([run(16, 9), run(32, 5), run(32, 6)])
    first = {life.batch_sizes[0] for life in lives(known)}
    assert first == {32}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"changes": {"batch_sizes": [16, 128], "default_batch_size": 16}},
            "batch size 128: stopped before it was known",
        ),
        ({"changes": {"default_batch_size": 128}}, "batch size 128: stopped before it was known"),
        ({"changes": {"batch_sizes": [8, 64]}}, "batch size 8: never tried"),
        (
            {"changes": {"target_metric": 0.95}},
            "all recorded trainings had target_metric 0.9: nothing is known of another",
        ),
        ({"changes": {"max_epochs": 5}}, "all recorded trainings had max_epochs 50"),
    ],
)
def test_what_the_record_cannot_answer_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(NotRecorded, match=said):
        alternatives(KNOWN, **asked)


def test_what_no_job_may_have_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="eta_knob must be a number from 0"):
        alternatives(KNOWN, eta_knobs=[1.5])
    with pytest.raises(PolicyMissing, match="policy 'magic' is not installed"):
        alternatives(KNOWN, policies=["magic"])
    with pytest.raises(InvalidSpec, match="default_batch_size must be one of"):
        alternatives(KNOWN, changes={"batch_sizes": [16, 32], "default_batch_size": 64})


def test_where_nothing_has_converged_nothing_can_be_said() -> None:
    with pytest.raises(NotRecorded, match="nothing can be said: no training has reached its target"):
        alternatives(record([run(size, 50, End.FAILED) for size in (16, 32, 64, 128)]))


def test_answers_do_not_depend_on_the_number_of_processes() -> None:
    known = record([run(64, 6), run(64, 9), run(32, 5), run(32, 8, End.CENSORED), run(32, 7)])
    alone, together = (answered(known, policies=["curve"], seeds=2, processes=count) for count in (1, 2))
    assert alone == together


@pytest.mark.slow
def test_what_fresh_lives_cost_lies_within_what_was_reported_of_recorded_ones() -> None:
    """Five jobs of a world, some of whose trainings are stopped, are asked what they cost as they are.

    Fresh lives of that world are the truth.
    """
    reported, true, stopped = [], [], 0
    for seed in range(5):
        known = record_of(folded(WILD, recurrences=20, seed=seed))
        reported.append(answered(known, seeds=24, recurrences=20)[AS_IT_IS].cost_j)
        true.append(mean_cost(known.known_batch_sizes))
        stopped += sum(known.count(size, End.CENSORED) for size in known.known_batch_sizes)
    assert stopped > 0
    within = [cost.low <= truth <= cost.high for cost, truth in zip(reported, true, strict=True)]
    assert sum(within) >= 4
    assert fmean(cost.mean for cost in reported) == pytest.approx(fmean(true), rel=0.1)
    assert all(cost.high - cost.low < truth for cost, truth in zip(reported, true, strict=True))


@cache
def mean_cost(batch_sizes: tuple[int, ...]) -> float:
    """What a recurrence in that world costs on the average [J], with some of its batch sizes."""
    restricted = replace(WILD, runs={size: WILD.runs[size] for size in batch_sizes})
    fresh = (simulate(restricted, {"policy": "pruning_thompson"}, recurrences=20, seed=1000 + k) for k in range(12))
    return fmean(fmean(life.costs) for life in fresh)
