"""What a job begins with: its own version before, another job, or nothing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bso.domain.commands import RegisterJob
from bso_client import AsyncBatchSizeOptimizer, BatchSizeOptimizer, InvalidSetting
from tests.unit.client.doubles import HARDWARE, ReachableOptimizer, ScriptedMonitor, job_spec
from tests.unit.client.fixtures import MakeOptimizer

EPOCHS = {32: 5, 64: 4, 128: 2}
BEST = 128


def train(bso: BatchSizeOptimizer, recurrences: int = 6) -> None:
    """Recurrences in which every epoch costs the same, and large batch sizes need few."""
    for _ in range(recurrences):
        for trial in bso.trials():
            with trial:
                for epoch in range(1, EPOCHS[trial.batch_size] + 1):
                    trial.on_evaluate(0.95 if epoch == EPOCHS[trial.batch_size] else 0.1)
                    if trial.finished:
                        break


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The optimizer's warnings."""
    return [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "optimizer_warning"]


def test_a_job_like_another_begins_with_its_best_batch_size(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    train(make_bso())
    bso = make_bso(job_spec(job_id="sibling"), like="job")
    assert bso.get_batch_size() == BEST
    assert optimizer.commands(RegisterJob)[-1].like == "job"
    [trial] = optimizer.trials("sibling")
    assert trial.reason == f"no run of this version has converged yet; by inherited knowledge {BEST} is best"
    assert warned(caplog) == []


def test_a_new_version_inherits_unless_it_is_not_to(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    train(make_bso())
    assert make_bso(job_spec(version="v2")).get_batch_size() == BEST
    assert make_bso(job_spec(version="v3"), inherit=False).get_batch_size() == 64
    assert [(one.inherit, one.like) for one in optimizer.commands(RegisterJob)] == [(True, None)] * 2 + [(False, None)]
    first, second = warned(caplog)
    assert "version 2 starts with the knowledge of version 1" in first
    assert "version 3 starts with no knowledge" in second


def test_a_job_that_is_not_there_is_a_warning(make_bso: MakeOptimizer, caplog: pytest.LogCaptureFixture) -> None:
    assert make_bso(like="nobody").get_batch_size() == 64
    assert warned(caplog) == [
        "nothing is inherited from job nobody: it is not registered, or this login cannot read it"
    ]


def test_without_a_server_it_is_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"state_dir": tmp_path, "hardware": HARDWARE, "monitor": ScriptedMonitor()}
    with BatchSizeOptimizer(job_spec(), **options) as bso:
        train(bso)
    with BatchSizeOptimizer(job_spec(job_id="sibling"), like="job", **options) as bso:
        assert bso.get_batch_size() == BEST
    assert warned(caplog) == []


def test_the_asynchronous_optimizer_takes_the_same_options(optimizer: ReachableOptimizer) -> None:
    async def begin() -> int:
        options: dict[str, Any] = {"transport": optimizer, "monitor": ScriptedMonitor(), "hardware": HARDWARE}
        async with AsyncBatchSizeOptimizer(job_spec(), like="other", **options) as bso:
            return await bso.get_batch_size()

    assert asyncio.run(begin()) == 64
    assert optimizer.commands(RegisterJob)[-1].like == "other"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"inherit": "no"}, "inherit must be True or False, got 'no'"),
        ({"inherit": None}, "inherit must be True or False, got None"),
        ({"like": ""}, "like is the job_id of a job to inherit from: it must not be empty"),
        ({"like": 7}, "like is the job_id of a job to inherit from: it must be a string, got int"),
        ({"like": "a/b"}, "like is the job_id of a job to inherit from: it must begin with a letter or digit"),
        ({"like": "x" * 121}, "it may have at most 120 characters, got 121"),
        ({"like": "a", "inherit": False}, "inherit=False lets the job inherit nothing: leave out one of them"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named_before_anything_is_sent(
    options: dict[str, Any], words: str, optimizer: ReachableOptimizer
) -> None:
    with pytest.raises(InvalidSetting, match=words):
        BatchSizeOptimizer(job_spec(), transport=optimizer, **options)
    assert optimizer.requests == []
