"""Worlds made of recorded trainings."""

import math
from collections import Counter
from dataclasses import replace
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso.domain.commands import PowerMeasurement
from bso.replay.what_if.record import End, Record, RecordedRun
from bso.replay.what_if.world import cost_noise, step_of, world
from bso.simulator import BatchSizeProblem
from tests.unit.replay.records import record, run

SEEDS = range(60)


def worlds(known: Record, *sizes: int) -> list[BatchSizeProblem]:
    return [world(known, sizes, sizes[0], seed=seed) for seed in SEEDS]


def test_a_seed_draws_one_training_fewer_than_there_are_and_each_may_be_drawn() -> None:
    lengths = [set(one.runs[32]) for one in worlds(record([run(32, 5), run(32, 6), run(32, 9)]), 32)]
    assert all(len(drawn) <= 2 and drawn <= {5, 6, 9} for drawn in lengths)
    assert {5} in lengths
    assert {5, 9} in lengths


def test_the_same_seed_draws_the_same_whichever_other_batch_sizes_there_are() -> None:
    known = record([run(32, 5), run(32, 6), run(32, 9), run(64, 8), run(64, 11)])
    alone, together = worlds(known, 32), worlds(known, 32, 64)
    assert [one.runs[32] for one in alone] == [one.runs[32] for one in together]


def test_a_stopped_training_that_nothing_outlasts_takes_one_step_more_or_never_gets_there() -> None:
    known = record([run(32, 5), run(32, 6), run(32, 40, End.CENSORED)])
    ends = {length for one in worlds(known, 32) for length in one.runs[32]} - {5, 6}
    assert ends == {41, None}
    assert all(not {41, None} <= set(one.runs[32]) for one in worlds(known, 32))


def test_a_stopped_training_takes_as_long_as_those_that_lasted_longer() -> None:
    """Kaplan and Meier: of 3, 5+, 6, 8 and 10 epochs, S(3) = 4/5, S(6) = 4/5 x 2/3, S(8) = 4/5 x 1/3."""
    runs = [run(32, 3), run(32, 5, End.CENSORED), run(32, 6), run(32, 8), run(32, 10)]
    lengths = Counter(length for seed in range(3000) for length in world(record(runs), [32], 32, seed=seed).runs[32])
    del lengths[None]  # of worlds in which none that lasted longer was drawn
    shares = {length: count / lengths.total() for length, count in lengths.items()}
    assert shares == {
        3: pytest.approx(1 / 5, abs=0.02),
        6: pytest.approx(4 / 5 / 3, abs=0.02),
        8: pytest.approx(4 / 5 / 3, abs=0.02),
        10: pytest.approx(4 / 5 / 3, abs=0.02),
    }


def test_trainings_of_which_none_was_stopped_are_taken_as_they_were() -> None:
    lengths = Counter(length for one in worlds(record([run(32, 5), run(32, 9)]), 32) for length in one.runs[32])
    assert lengths.keys() == {5, 9}


def test_a_single_training_stands_for_others_that_vary_as_those_of_all_batch_sizes_do() -> None:
    known = record([run(32, 20), run(64, 30), run(64, 31)], max_epochs=200)
    found = worlds(known, 32, 64)
    assert {length for one in found for length in one.runs[64]} == {30, 31}
    means = [fmean(length or 0 for length in one.runs[32]) for one in found]
    assert fmean(means) == pytest.approx(20, rel=0.1)
    assert pstdev(map(math.log, means)) == pytest.approx(known.epochs_spread.deviation, rel=0.3)
    within = [pstdev(math.log(length or 1) for length in one.runs[32]) for one in found]
    assert fmean(within) == pytest.approx(known.epochs_spread.deviation, rel=0.2)


def test_a_batch_size_of_which_a_training_was_stopped_takes_at_least_as_long() -> None:
    known = record([run(32, 5), run(64, 9, End.CENSORED)])
    assert {length for one in worlds(known, 32, 64) for length in one.runs[64]} == {10, None}


def test_what_does_not_fit_in_memory_does_not_in_the_world_either() -> None:
    [one, *_] = worlds(record([run(32, 5), run(32, 6)], infeasible=frozenset({128})), 32, 128)
    assert one.infeasible == {128}
    assert one.batch_sizes == (32, 128)
    assert one.epochs[128] == one.epochs[32]


def test_some_training_converges_in_every_world() -> None:
    known = record([run(32, 5), run(32, 6), *(run(32, 50, End.FAILED) for _ in range(20))])
    assert all(any(steps is not None for steps in one.runs[32]) for one in worlds(known, 32))


def test_an_epoch_takes_what_it_took_in_the_mean_of_those_drawn() -> None:
    """The mean, not the median: by the noise of the simulated lives, which is that of what was seen."""
    dear = replace(run(32, 10), time_s=200.0, energy_j=20_000.0)
    known = record([run(32, 10), dear])
    noise = cost_noise(known).run
    assert noise == pytest.approx(math.log(2.0) / math.sqrt(2.0))
    mean = math.exp(0.5 * noise**2)
    seen = {
        (round(one.epochs[32][0].time_s * mean, 6), round(one.epochs[32][0].energy_j * mean, 6))
        for one in worlds(known, 32)
    }
    assert seen == {(10.0, 1000.0), (20.0, 2000.0)}


def test_what_an_epoch_of_a_single_training_cost_may_have_been_luck() -> None:
    often = [replace(run(64, 9), time_s=90.0 * factor, energy_j=9_000.0 * factor) for factor in (0.7, 0.8, 1.2, 1.4)]
    known = record([run(32, 10), *often])
    noise = cost_noise(known).run
    prices = [math.log(one.epochs[32][0].time_s) for one in worlds(known, 32, 64)]
    assert noise > 0.2
    assert pstdev(prices) == pytest.approx(noise, rel=0.3)
    assert fmean(map(math.exp, prices)) * math.exp(0.5 * noise**2) == pytest.approx(10.0, rel=0.15)


def test_where_no_training_that_is_drawn_has_its_energy_it_is_the_usual_one() -> None:
    bare = replace(run(32, 10), energy_j=0.0, is_energy_measured=False)
    seen = {one.epochs[32][0].energy_j for one in worlds(record([run(32, 10), bare], eta_knob=0.0), 32)}
    assert seen == {1000.0}


def test_power_limits_that_were_profiled_are_priced_against_the_one_that_was_best() -> None:
    """By eta_knob 0.5 the limit of 100 W is best: 12 s x (100 + 200) / 2 W = 1800 J against 10 s x 200 W = 2000 J."""
    profile = (
        PowerMeasurement(power_limit_w=100.0, average_power_w=100.0, samples_per_s=1000 / 12),
        PowerMeasurement(power_limit_w=200.0, average_power_w=200.0, samples_per_s=1000 / 10),
    )
    known = record(
        [replace(one, energy_j=one.time_s * 110.0) for one in (run(32, 6), run(32, 6))], measurements={32: profile}
    )
    [low, high] = worlds(known, 32)[0].epochs[32]
    assert (low.power_limit_w, high.power_limit_w) == (100.0, 200.0)
    assert [low.time_s, high.time_s] == pytest.approx([10.0, 10.0 * 10 / 12])
    assert [low.average_power_w, high.average_power_w] == pytest.approx([110.0, 2 * 110.0])
    problem = worlds(known, 32)[0]
    assert problem.workload.samples == round(10.0 * 1000 / 12), "of an epoch: what it takes, times the throughput"
    assert worlds(record([run(32, 6), run(32, 6)]), 32)[0].workload.samples == 50_000, "where no throughput is known"
    assert problem.best_price(32, 0.5).time_s == pytest.approx(10.0)
    assert problem.best_price(32, 0.0).time_s == pytest.approx(10.0 * 10 / 12)


def test_trainings_that_report_every_half_epoch_are_counted_in_half_epochs() -> None:
    known = record([run(32, 2.5, reports=5), run(32, 3.0, reports=6), run(64, 8), run(64, 9)])
    assert step_of(known) == 0.5
    problems = worlds(known, 32, 64)
    assert {steps for one in problems for steps in one.runs[32]} == {5, 6}
    assert {steps for one in problems for steps in one.runs[64]} == {16, 18}
    assert problems[0].workload.max_epochs == 100
    assert problems[0].epochs[32][0].time_s == pytest.approx(5.0)


def test_a_last_report_after_the_limit_is_at_the_limit() -> None:
    known = record([run(32, 50.4, reports=72), run(32, 50.4, reports=72)])
    step = step_of(known)
    [one, *_] = worlds(known, 32)
    assert step == pytest.approx(0.7)
    assert set(one.runs[32]) == {one.workload.max_epochs} == {72}


@pytest.mark.parametrize(
    ("max_epochs", "lengths", "reports_an_epoch"),
    [(10, (3.0, 3.6), 10 / 3), (1000, (333, 340), 1), (2500, (900, 1111), 1)],
)
def test_a_failed_training_never_converges_though_the_limit_is_not_a_whole_number_of_steps(
    max_epochs: int, lengths: tuple[float, float], reports_an_epoch: float
) -> None:
    converged = [run(32, epochs, reports=round(epochs * reports_an_epoch)) for epochs in lengths]
    known = record([*converged, *(run(32, max_epochs, End.FAILED) for _ in range(4))], max_epochs=max_epochs)
    step = step_of(known)
    assert max_epochs / step != round(max_epochs / step)
    found = worlds(known, 32)
    assert all(one.workload.max_epochs not in one.runs[32] for one in found)
    assert any(None in one.runs[32] for one in found)


def test_a_training_that_was_stopped_just_before_the_limit_may_have_converged_at_it() -> None:
    known = record([run(32, 5), run(32, 6), run(32, 50 - 1e-10, End.CENSORED)])
    drawn = [steps for one in worlds(known, 32) for steps in one.runs[32]]
    assert set(drawn) == {5, 6, 50, None}


def test_trainings_that_report_all_the_time_are_simulated_in_two_hundred_steps() -> None:
    assert step_of(record([run(32, 2, reports=4000), run(32, 2, reports=4000)])) == pytest.approx(0.01)


SOME = st.lists(
    st.builds(run, st.just(32), st.integers(1, 49), st.sampled_from([End.CONVERGED, End.CENSORED])), max_size=6
)


@given(SOME)
def test_trainings_of_one_batch_size_say_nothing_of_another(more: list[RecordedRun]) -> None:
    few = record([run(64, 8), run(64, 9), run(16, 7)])
    many = replace(few, runs=(*few.runs, *more))
    assert many.why_unknown(16) is few.why_unknown(16) is None
    assert many.why_unknown(128) == few.why_unknown(128) == "never tried"
    one, other = (world(each, [64], 64, seed=3) for each in (few, many))
    assert one == other
