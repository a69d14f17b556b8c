"""Many simulations, and what they say together."""

import math

import numpy as np
import pytest

from bso.simulator import InvalidSimulation, Run
from bso.simulator.intervals import Bootstrap
from bso.simulator.study import Case, StudySettings, study
from bso.simulator.summary import compare, summarize
from tests.unit.simulator.problems import make

EASY = Case(name="easy", problem=make({16: (9, 10, 11), 32: (5, 6), 64: (8, 9)}))
OTHER = Case(name="other", problem=make({32: (7, 9), 64: (3, 4), 128: (20,)}, max_epochs=60))
SETTINGS = StudySettings(recurrences=25)


def test_results_do_not_depend_on_the_number_of_processes() -> None:
    received: list[Run] = []
    alone = study([EASY, OTHER], range(2), SETTINGS)
    spread = study([EASY, OTHER], range(2), SETTINGS, processes=2, on_done=received.append)
    assert spread == alone
    assert len(received) == 4
    assert [result.case.name for result in alone] == ["easy", "other"]
    assert [run.seed for run in alone[0].runs] == [0, 1]


def test_what_one_process_refuses_the_study_refuses() -> None:
    with pytest.raises(InvalidSimulation, match="policy 'magic' is not installed"):
        study([EASY], range(4), StudySettings(spec_overrides={"policy": "magic"}), processes=2)


def test_a_summary_has_means_over_seeds_by_horizon_and_the_worst_run() -> None:
    results = study([EASY, OTHER], range(3), SETTINGS)
    summary = summarize(results)
    assert (summary.policy, summary.seeds) == ("curve", (0, 1, 2))
    easy = summary.problems[0]
    assert (easy.name, easy.recurrences, easy.oracle_batch_size) == ("easy", 25, 32)
    assert easy.measures.regret.keys() == {"20", "full"}
    for horizon, at in (("20", 20), ("full", 25)):
        regrets = [[run.regret(at) for run in result.runs] for result in results]
        assert easy.measures.regret[horizon].mean == pytest.approx(np.mean(regrets[0]))
        assert summary.total.regret[horizon].mean == pytest.approx(np.mean(regrets))
    assert summary.total.worst_run == max(run.regret(25) for result in results for run in result.runs)


def test_cases_that_are_shorter_than_a_horizon_do_not_count_there() -> None:
    short = study([EASY], range(2), StudySettings(recurrences=10))
    long = study([OTHER], range(2), StudySettings(recurrences=20))
    total = summarize((*short, *long)).total
    assert total.regret["20"].mean == pytest.approx(np.mean([run.regret(20) for run in long[0].runs]))


def test_without_a_default_that_converges_there_is_nothing_to_compare_with() -> None:
    case = Case(name="hard", problem=make({32: (5,), 64: (None,)}))
    measures = summarize(study([case], range(2), StudySettings(recurrences=8))).total
    assert measures.cost_over_default["full"].mean is None
    assert measures.last5_energy_over_default.ci95 is None
    assert measures.regret["full"].mean is not None


def test_one_run_has_no_interval() -> None:
    estimate = Bootstrap(["a"], 1).estimate(np.array([[3.0]]))
    assert (estimate.mean, estimate.ci95) == (3.0, None)
    estimate = Bootstrap(["a", "b"], 1).estimate(np.array([[3.0], [np.nan]]))
    assert (estimate.mean, estimate.ci95) == (3.0, None)


def test_the_interval_of_many_seeds_of_one_workload_is_that_of_their_mean() -> None:
    values = np.random.default_rng(1).normal(5.0, 2.0, size=(1, 400))
    estimate = Bootstrap(["a"], 400).estimate(values)
    assert estimate.mean == pytest.approx(values.mean())
    assert estimate.ci95 == pytest.approx(1.96 * 2.0 / math.sqrt(400), rel=0.15)


def test_runs_of_one_workload_are_drawn_together_so_its_gpus_do_not_narrow_the_interval() -> None:
    """Two GPUs with the same values say no more than one of them."""
    values = np.random.default_rng(1).normal(5.0, 2.0, size=(1, 100))
    one = Bootstrap(["a"], 100).estimate(values)
    two = Bootstrap(["a", "a"], 100).estimate(np.vstack([values, values]))
    assert two.ci95 == pytest.approx(one.ci95)


def test_workloads_that_differ_widen_the_interval() -> None:
    alike = np.random.default_rng(1).normal(5.0, 1.0, size=(8, 50))
    differing = alike + np.arange(8.0)[:, None]
    names = list("abcdefgh")
    narrow, wide = (Bootstrap(names, 50).estimate(values).ci95 for values in (alike, differing))
    assert narrow is not None
    assert wide is not None
    assert wide > 4 * narrow
    assert wide == pytest.approx(1.96 * np.arange(8.0).std() / math.sqrt(8), rel=0.2)


def test_policies_are_compared_run_by_run() -> None:
    unhurried = StudySettings(recurrences=25, spec_overrides={"beta_knob": None})
    one, two = study([EASY, OTHER], range(3), SETTINGS), study([EASY, OTHER], range(3), unhurried)
    assert compare(one, one).regret["20"].mean == compare(one, one).regret["full"].ci95 == 0.0
    difference = compare(one, two)
    means = [summarize(results).total.regret["full"].mean for results in (one, two)]
    assert None not in means
    assert difference.regret["full"].mean == pytest.approx(float(means[0] or 0) - float(means[1] or 0))
    with pytest.raises(ValueError, match="expected the same cases and seeds"):
        compare(one, study([OTHER, EASY], range(3), SETTINGS))
