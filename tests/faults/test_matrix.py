"""The fault matrix: a few of its scenarios, and that it notices builds which break their promises."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.matrix.pair import Pair, running_pair
from tests.faults.matrix.scenario import Scenario, all_scenarios, played

BROKEN = str(Path(__file__).with_name("broken_worker.py"))
SMOKE = [one for one in all_scenarios().values() if one.is_smoke]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Servers of this module alone: scenarios kill them."""
    with running_pair("mariadb") as pair:
        yield pair


@pytest.mark.parametrize("scenario", SMOKE, ids=lambda scenario: scenario.name)
def test_a_scenario_loses_doubles_and_contradicts_nothing(pair: Pair, scenario: Scenario) -> None:
    result = asyncio.run(played(scenario, pair, seed=11))
    assert result.not_run is None
    assert result.is_sound, result.unexpected
    assert result.acknowledged > 50


def test_a_build_that_acknowledges_before_it_commits_is_noticed(pair: Pair) -> None:
    program = (BROKEN, "acknowledges_early")
    result = asyncio.run(played(all_scenarios()["workers_killed"], pair, seed=11, worker_program=program))
    assert result.lost > 0, result


def test_a_build_that_ignores_command_ids_is_noticed(pair: Pair) -> None:
    program = (BROKEN, "ignores_command_id")
    result = asyncio.run(played(all_scenarios()["one_command_at_once"], pair, seed=11, worker_program=program))
    assert result.duplicated > 0, result
    assert any("one command got" in words for words in result.unexpected), result.unexpected
