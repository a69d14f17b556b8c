"""What users may rely on; mypy reads this file, too, so that its types are part of it."""

from collections.abc import AsyncGenerator, Generator
from inspect import signature
from typing import assert_type

import bso_client
from bso_client import (
    Accumulation,
    AsyncBatchSizeOptimizer,
    AsyncTrial,
    BatchSizeOptimizer,
    JobSpec,
    Monitor,
    Outcome,
    Trial,
)
from tests.unit.client.doubles import ScriptedMonitor


def a_script(bso: BatchSizeOptimizer) -> None:
    assert_type(bso.trials(), Generator[Trial, None, None])
    assert_type(bso.resumable_trials(None), Generator[Trial, None, None])
    for trial in bso.trials():
        assert_type(trial.batch_size, int)
        assert_type(trial.is_resumed, bool)
        assert_type(trial.outcome, Outcome | None)
        assert_type(trial.bound, float | None)
        assert_type(trial.learning_rate, float)
        assert_type(trial.accumulation(64), Accumulation)
        with trial as entered:
            assert_type(entered, Trial)
            assert_type(trial.on_evaluate(0.5, epoch=1.5), None)
    assert_type(bso.get_batch_size(), int)
    assert_type(bso.training_finished, bool)


async def an_async_script(bso: AsyncBatchSizeOptimizer) -> None:
    assert_type(bso.trials(), AsyncGenerator[AsyncTrial, None])
    assert_type(bso.resumable_trials(None), AsyncGenerator[AsyncTrial, None])
    assert_type(await bso.get_batch_size(), int)


def signatures(face: type) -> dict[str, list[str]]:
    """The public methods and properties of a class, with the names of their parameters."""
    members = {name: getattr(face, name) for name in dir(face) if not name.startswith("_")}
    return {name: list(signature(each).parameters) if callable(each) else [] for name, each in members.items()}


def test_a_trial_has_the_same_methods_in_an_event_loop() -> None:
    assert signatures(AsyncTrial) == signatures(Trial)


def test_the_optimizer_has_the_same_methods_in_an_event_loop() -> None:
    here, there = signatures(BatchSizeOptimizer), signatures(AsyncBatchSizeOptimizer)
    assert there.pop("aclose") == here.pop("close")
    assert here.keys() - there.keys() == {"relaunching", "is_looping"}  # both are about how a process ends
    assert there == {name: each for name, each in here.items() if name in there}


def a_monitor_of_ones_own() -> Monitor:
    return ScriptedMonitor()


def a_spec() -> JobSpec:
    return JobSpec(batch_sizes=[32, 64], default_batch_size=32, beta_knob=None, target_metric=0.9)


def test_everything_that_is_promised_is_there() -> None:
    assert sorted(bso_client.__all__, key=str.lower) == sorted(
        [
            *("AsyncBatchSizeOptimizer", "AsyncTrial", "BatchSizeOptimizer", "JobSpec", "Trial"),
            *("EnergyMethod", "EnergyMonitor", "HardwareKind", "Measurement", "Monitor", "NoMeter", "Outcome"),
            *("BsoError", "Misconfigured", "Rejected", "Retryable"),
            *("CannotResume", "DistributedNotReady", "InvalidReport", "InvalidSetting", "InvalidSpec", "InvalidUrl"),
            *("NotInThisProcess", "Refused", "SpecConflict", "TrainFailed", "Unreachable", "WrongOrder"),
            *("Accumulation", "LearningRate"),
            *("RankLost", "Ranks", "RanksOutOfStep"),
            *("LimitChoice", "Cost", "Energy", "MaxSlowdown", "Selection", "Time"),
            *("NearestPowerProfile", "PowerLimitOptimizer", "PowerMeasurement"),
            "RELAUNCH",
        ],
        key=str.lower,
    )
    assert all(hasattr(bso_client, name) for name in bso_client.__all__)
