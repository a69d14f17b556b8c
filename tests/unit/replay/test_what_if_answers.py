"""What alternatives would have cost, against worlds in which it is known what they do cost."""

from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest

from bso.domain.commands import PowerMeasurement
from bso.replay.what_if.alternatives import AS_IT_IS, Grid, alternatives
from bso.replay.what_if.answers import Answer, answers
from bso.replay.what_if.playing import lives_to_play, play
from bso.replay.what_if.recorded import End, Record, record_of
from bso.simulator import simulate
from tests.unit.replay.records import record, run
from tests.unit.replay.recurring_job import folded
from tests.unit.simulator.problems import make

WILD = make({32: (5, 6, 7, 14), 64: (7, 8, 9, 18), 128: (9, 10, 11, 12)})
"""A world in which some trainings take so much longer than others that they are stopped."""


def answered(
    known: Record, grid: Grid | None = None, *, seeds: int = 4, recurrences: int = 5, processes: int = 1
) -> dict[str, Answer | None]:
    compared = alternatives(known, grid or Grid())
    lives = play(known, compared, seeds=seeds, recurrences=recurrences, processes=processes)
    return {one.name: found for one, found in zip(compared, answers(known, compared, lives), strict=True)}


def certain(answer: Answer | None) -> Answer:
    assert answer is not None
    return answer


def test_a_batch_size_that_always_takes_as_long_costs_exactly_that() -> None:
    """6 epochs of 10 s and 1000 J with at most 200 W: half of 6 kJ and half of 12 kJ."""
    answer = certain(answered(record([run(64, 6), run(64, 6)]))[AS_IT_IS])
    assert (answer.cost.least, answer.cost.most) == (45_000.0, 45_000.0)
    assert (answer.cost.low, answer.cost.high) == (45_000.0, 45_000.0)
    assert answer.energy_j is not None
    assert (answer.energy_j.least, answer.time_s.least, answer.trials.least) == (30_000.0, 300.0, 5.0)
    assert answer.choices == {64: 1.0}
    assert answer.more_cost is None


def test_another_eta_is_compared_by_its_own_cost() -> None:
    found = answered(record([run(64, 6), run(64, 6)]), Grid(eta_knobs=[1.0, 0.0]))
    energy, time = certain(found["eta 1"]), certain(found["eta 0"])
    assert (energy.cost.least, time.cost.least) == (30_000.0, 60_000.0)
    for answer in (energy, time):
        assert answer.more_cost is not None
        assert (answer.more_cost.least, answer.more_cost.high) == (0.0, 0.0)


def test_without_any_energy_only_time_can_be_asked_about() -> None:
    """Power limits may have been profiled: a simulated life does without them."""
    profile = tuple(
        PowerMeasurement(power_limit_w=watts, average_power_w=watts, samples_per_s=watts) for watts in (100.0, 200.0)
    )
    bare = [replace(run(64, 6), energy_j=0.0, is_energy_measured=False) for _ in range(2)]
    known = record(bare, eta_knob=0.0, measurements={64: profile})
    found = answered(known, Grid(eta_knobs=[0.0, 0.5], policies=["pruning_thompson", "curve"]))
    for name in (AS_IT_IS, "policy curve"):
        answer = certain(found[name])
        assert (answer.cost.least, answer.time_s.least, answer.energy_j) == (60_000.0, 300.0, None)
    assert found["eta 0.5"] is found["policy curve, eta 0.5"] is None
    [_, other] = alternatives(known, Grid(eta_knobs=[0.5]))
    assert other.unknown == "the energy was not measured: only eta 0 can be answered"


@pytest.mark.parametrize("eta_knob", [0.0, 0.5, 1.0])
def test_by_another_eta_another_power_limit_is_best(eta_knob: float) -> None:
    """A job whose trainings always take as long ran under the limit that is best by 0.5; it had profiled both."""
    problem = make({64: (6,)})
    known = record_of(folded(problem, recurrences=3, seed=1))
    name = AS_IT_IS if eta_knob == 0.5 else f"eta {eta_knob:g}"
    answer = certain(answered(known, Grid(eta_knobs=[eta_knob]), recurrences=3)[name])
    spec = {"policy": "pruning_thompson", "eta_knob": eta_knob}
    truth = simulate(problem, spec, recurrences=3, seed=1)
    assert answer.cost.least == pytest.approx(sum(truth.costs))
    assert answer.cost.most == pytest.approx(sum(truth.costs))
    assert answer.time_s.least == pytest.approx(sum(trial.time_s for trial in truth.trials))


def test_a_knob_that_changes_nothing_makes_no_difference_because_luck_is_shared() -> None:
    known = record([run(64, 6), run(64, 9), run(32, 5), run(32, 8)])
    answer = certain(answered(known, Grid(window_sizes=[1000]))["window 1000"])
    assert answer.cost.low < answer.cost.high
    assert answer.more_cost is not None
    assert (answer.more_cost.low, answer.more_cost.high) == (0.0, 0.0)


def test_stopped_trainings_make_bounds_of_a_mean() -> None:
    runs = [run(64, 6), run(64, 6), *(run(64, 6, End.CENSORED) for _ in range(3))]
    compared = alternatives(record(runs), Grid())
    assert lives_to_play(record(runs), compared, seeds=8) == 16
    answer = certain(answered(record(runs, beta_knob=None, max_epochs=20), seeds=8)[AS_IT_IS])
    assert answer.cost.least < 5 * 7 * 1500.0  # one epoch more would have done
    assert answer.cost.most > 5 * 7 * 1500.0  # they would have failed after 20
    assert answer.cost.low <= answer.cost.least < answer.cost.most <= answer.cost.high


def test_of_a_cost_of_nothing_there_is_no_share() -> None:
    """By eta_knob 1 energy alone counts, and the meter always said 0 J."""
    known = record([replace(run(64, 6), energy_j=0.0), replace(run(64, 7), energy_j=0.0)], eta_knob=1.0)
    found = answered(known, Grid(policies=["curve"], eta_knobs=[0.5]))
    answer = certain(found["policy curve, eta 0.5"])
    assert answer.cost.least > 0
    assert answer.more_cost_share is not None
    free = certain(answered(known, Grid(policies=["curve"]))["policy curve"])
    assert free.more_cost is not None
    assert (free.cost.most, free.more_cost.most, free.more_cost_share) == (0.0, 0.0, None)


def test_answers_are_those_of_their_alternatives_whatever_these_are_called() -> None:
    known = record([run(64, 6), run(64, 6)])
    compared = [replace(one, name="same") for one in alternatives(known, Grid(eta_knobs=[1.0, 0.0]))]
    compared.insert(1, replace(compared[0], unknown="unknown"))
    lives = play(known, compared, seeds=2, recurrences=5)
    assert [found and found.cost.least for found in answers(known, compared, lives)] == [45_000, None, 30_000, 60_000]


def test_what_is_unknown_has_no_answer() -> None:
    known = record([run(16, 9), run(16, 10), run(64, 6)])
    found = answered(known, Grid(batch_sizes=[[16, 64], [16]]))
    assert found["sizes 16,64"] is None
    assert certain(found[AS_IT_IS]).choices == {16: 1.0}
    assert answered(record([run(64, 6)])) == {AS_IT_IS: None}


def test_answers_do_not_depend_on_the_number_of_processes() -> None:
    known = record([run(64, 6), run(64, 9), run(32, 5), run(32, 8, End.CENSORED), run(32, 7)])
    grid = Grid(policies=["curve"])
    assert answered(known, grid, seeds=2) == answered(known, grid, seeds=2, processes=2)


@pytest.mark.slow
def test_what_fresh_lives_cost_lies_within_what_was_reported_of_recorded_ones() -> None:
    """Five jobs of a world, some of whose trainings are stopped, are asked what they cost as they are.

    Fresh lives of that world, with the batch sizes that are known, are the truth.
    """
    reported, true, stopped = [], [], 0
    for seed in range(5):
        known = record_of(folded(WILD, recurrences=20, seed=seed))
        reported.append(certain(answered(known, seeds=12, recurrences=20)[AS_IT_IS]).cost)
        true.append(mean_cost(known.known_batch_sizes))
        stopped += sum(known.count(size, End.CENSORED) for size in known.known_batch_sizes)
    assert stopped > 0
    within = [cost.low <= truth <= cost.high for cost, truth in zip(reported, true, strict=True)]
    assert sum(within) >= 4
    assert fmean(cost.least for cost in reported) == pytest.approx(fmean(true), rel=0.1)
    assert all(cost.high - cost.low < truth for cost, truth in zip(reported, true, strict=True))


@cache
def mean_cost(batch_sizes: tuple[int, ...]) -> float:
    """What a life in that world costs on the average [J], with some of its batch sizes."""
    restricted = replace(WILD, runs={size: WILD.runs[size] for size in batch_sizes})
    lives = (simulate(restricted, {"policy": "pruning_thompson"}, recurrences=20, seed=1000 + k) for k in range(12))
    return fmean(sum(life.costs) for life in lives)
