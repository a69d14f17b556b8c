"""The fault matrix: a few of its scenarios, and that it notices builds which break their promises."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.matrix.__main__ import is_played_again, left_out, main
from tests.faults.matrix.of_ranks import RankedTraining, disagreements
from tests.faults.matrix.pair import Pair, running_pair
from tests.faults.matrix.result import FAR_ABOVE, Result
from tests.faults.matrix.scenario import RECOVERED_S, Scenario, all_scenarios, judge, played, promised

BROKEN = str(Path(__file__).with_name("broken_worker.py"))
LONG = {"calm", "one_command_at_once"}
SMOKE = [
    pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.name in LONG else [])
    for one in all_scenarios().values()
    if one.is_smoke
]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Servers of this module alone: scenarios kill them."""
    with running_pair("mariadb") as pair:
        yield pair


@pytest.mark.parametrize("scenario", SMOKE)
def test_a_scenario_loses_doubles_and_contradicts_nothing(pair: Pair, scenario: Scenario) -> None:
    result = asyncio.run(played(scenario, pair, seed=11))
    assert result.not_run is None
    # Other tests run beside this one: how long anything took is held against the promises by `make faults`, alone.
    result.unexpected = [words for words in result.unexpected if not words.startswith(FAR_ABOVE)]
    assert result.is_sound, result.unexpected
    assert result.acknowledged > 50
    assert result.figures["epoch_costs_acknowledged"] > 0


@pytest.mark.parametrize(
    ("page", "words"), [("docs/guarantees.md", "the {} scenarios"), ("CHANGELOG.md", "of {} faults")]
)
def test_a_page_says_how_many_scenarios_there_are(page: str, words: str) -> None:
    text = " ".join((Path(__file__).parents[2] / page).read_text(encoding="utf-8").split())
    assert words.format(len(all_scenarios())) in text


def test_what_takes_far_longer_than_promised_fails_also_where_slowness_does_not() -> None:
    verdicts = []
    for stall_s in (0.5, 1.5, 5.9, 6.1):
        result = Result(scenario="any", seed=1, broker="", database="", promises={"others_stall_s": 1.0})
        judge(result, {"others_stall_s": stall_s})
        verdicts.append((result.is_sound, len(result.broken_promises)))
    assert verdicts == [(True, 0), (True, 1), (True, 1), (False, 0)]


@pytest.mark.parametrize(
    ("stall_s", "options", "is_again"),
    [
        (0.5, {"again": True, "lenient": False}, False),
        (1.5, {"again": False, "lenient": False}, True),
        (1.5, {"again": True, "lenient": True}, False),
        (60.0, {"again": False, "lenient": False}, False),
        (60.0, {"again": True, "lenient": True}, True),
    ],
)
def test_what_a_slow_machine_may_explain_is_played_once_more(
    stall_s: float, options: dict[str, bool], is_again: bool
) -> None:
    result = Result(scenario="any", seed=1, broker="", database="", promises={"others_stall_s": 1.0})
    judge(result, {"others_stall_s": stall_s})
    assert is_played_again(result, **options) is is_again
    assert not is_played_again(replace(result, lost=1), **options), "no machine explains a loss"


def test_a_build_in_which_others_wait_for_a_minute_after_the_fault_is_noticed() -> None:
    result = Result(scenario="any", seed=1, broker="", database="", promises={"recovery_s": RECOVERED_S})
    judge(result, {"recovery_s": 61.0})
    assert not result.is_sound


@pytest.mark.parametrize("scenario", all_scenarios().values(), ids=lambda scenario: scenario.name)
def test_every_scenario_promises_how_long_others_wait(scenario: Scenario) -> None:
    result = Result(scenario=scenario.name, seed=1, broker="", database="")
    result.promises = dict(promised(scenario, lasted_s=10.0))
    judge(result, dict.fromkeys(result.promises, 400.0))
    assert {"others_stall_s", "others_slowest_s", "recovery_s", "recovery_of_harmed_s"} <= result.promises.keys()
    assert len(result.unexpected) == len(result.promises)


def test_a_scenario_that_needs_what_is_not_installed_is_not_run_and_says_why(pair: Pair) -> None:
    scenario = replace(all_scenarios()["ranks_killed"], needs_module="no_such_module")
    result = asyncio.run(played(scenario, pair, seed=11))
    assert result.not_run == "no_such_module is not installed"


@pytest.mark.parametrize(("seen", "count"), [((1.0, 1.0), 0), ((1.0, 2.0), 1)])
def test_ranks_that_see_different_costs_are_noticed(tmp_path: Path, seen: tuple[float, float], count: int) -> None:
    for rank, cost in enumerate(seen):
        fact = {"did": "evaluated", "launch": "first", "night": 1, "attempt": 1, "epoch": 1.0, "cost": cost}
        (tmp_path / f"rank-{rank}.jsonl").write_text(json.dumps(fact) + "\n", encoding="utf-8")
    with subprocess.Popen(["true"]) as process:
        journal = tmp_path / "rank-0.jsonl"
        training = RankedTraining(job_id="job", journal=journal, state_dir=tmp_path, process=process, is_elastic=True)
    assert len(disagreements(training)) == count


def test_scenarios_that_are_not_chosen_are_named_in_the_file(pair: Pair) -> None:
    everything = list(all_scenarios().values())
    (left,) = left_out(everything[2:], pair, seed=1)
    assert left.not_run == f"not chosen: {everything[0].name}, {everything[1].name}"
    assert left_out(everything, pair, seed=1) == []


@pytest.mark.slow
def test_a_build_that_acknowledges_before_it_commits_fails_the_program(tmp_path: Path) -> None:
    out = tmp_path / "faults.json"
    program = ["--worker-program", BROKEN, "acknowledges_early"]
    assert main(["--scenario", "workers_killed", "--seed", "11", "--lenient", "--out", str(out), *program]) == 1
    (result,) = [one for one in json.loads(out.read_text()) if one["scenario"] == "workers_killed"]
    assert result["lost"] > 0, result


@pytest.mark.slow
def test_a_build_that_ignores_command_ids_is_noticed(pair: Pair) -> None:
    program = (BROKEN, "ignores_command_id")
    result = asyncio.run(played(all_scenarios()["one_command_at_once"], pair, seed=11, worker_program=program))
    assert result.duplicated > 0, result
    assert any("one command got" in words for words in result.unexpected), result.unexpected


@pytest.mark.slow
def test_a_build_that_publishes_before_it_commits_is_noticed(pair: Pair) -> None:
    program = (BROKEN, "publishes_early")
    result = asyncio.run(played(all_scenarios()["workers_killed"], pair, seed=11, worker_program=program))
    assert any("of the stream" in words for words in result.unexpected), result


@pytest.mark.slow
def test_a_build_that_acknowledges_probed_epoch_costs_without_recording_them_is_noticed(pair: Pair) -> None:
    program = (BROKEN, "loses_epoch_costs")
    result = asyncio.run(played(all_scenarios()["one_command_at_once"], pair, seed=11, worker_program=program))
    assert result.lost == result.figures["epoch_costs_acknowledged"] > 0, result
    assert any(words.startswith("lost") and "ReportEpochCosts" in words for words in result.unexpected), result


@pytest.mark.slow
def test_a_build_that_records_probed_epoch_costs_twice_is_noticed(pair: Pair) -> None:
    program = (BROKEN, "doubles_epoch_costs")
    result = asyncio.run(played(all_scenarios()["one_command_at_once"], pair, seed=11, worker_program=program))
    assert result.duplicated > 0, result
    assert any("recorded twice: ('a probe'" in words for words in result.unexpected), result
