# ruff: noqa: PT012  # what a user writes has more than one statement

import asyncio
from contextlib import aclosing, suppress
from typing import Any

import pytest

from bso.domain.commands import ReportEpoch
from bso_client import AsyncBatchSizeOptimizer, Outcome, TrainFailed, WrongOrder
from tests.unit.client.doubles import HARDWARE, ReachableOptimizer, ScriptedMonitor, job_spec


def make(optimizer: ReachableOptimizer, monitor: ScriptedMonitor, **fields: Any) -> AsyncBatchSizeOptimizer:
    return AsyncBatchSizeOptimizer(job_spec(**fields), transport=optimizer, monitor=monitor, hardware=HARDWARE)


async def outcomes(optimizer: ReachableOptimizer) -> list[Outcome | None]:
    return [trial.outcome for trial in await optimizer.store.trials("job")]


async def test_the_loop(optimizer: ReachableOptimizer, monitor: ScriptedMonitor) -> None:
    async with make(optimizer, monitor) as bso:
        async for trial in bso.trials():
            async with trial:
                while not trial.finished:
                    await trial.on_evaluate(0.1 if trial.attempt == 1 else 0.95)
            assert bso.job_id == "job"

    assert await outcomes(optimizer) == [Outcome.NOT_CONVERGED, Outcome.CONVERGED]
    assert optimizer.is_closed


async def test_the_flat_methods(optimizer: ReachableOptimizer, monitor: ScriptedMonitor) -> None:
    async with make(optimizer, monitor) as bso:
        with pytest.raises(WrongOrder, match="get_batch_size"):
            await bso.on_train_begin()
        assert await bso.get_batch_size() == 64
        await bso.on_train_begin()
        with bso.paused():
            pass
        with pytest.raises(TrainFailed):
            while not bso.training_finished:
                await bso.on_evaluate(0.1)
        assert bso.trial is not None
        assert not bso.trial.converged


async def test_a_cancelled_training_is_interrupted(optimizer: ReachableOptimizer, monitor: ScriptedMonitor) -> None:
    trains = asyncio.Event()

    async def train() -> None:
        async with make(optimizer, monitor) as bso:
            async for trial in bso.trials():
                async with trial:
                    trains.set()
                    await asyncio.Event().wait()

    task = asyncio.create_task(train())
    await trains.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await outcomes(optimizer) == [Outcome.INTERRUPTED]


async def test_a_break_before_the_training_calls_the_trial_off(
    optimizer: ReachableOptimizer, monitor: ScriptedMonitor
) -> None:
    async with make(optimizer, monitor) as bso, aclosing(bso.trials()) as trials:
        async for _trial in trials:
            break

    assert await outcomes(optimizer) == [Outcome.CANCELLED]


async def test_an_exception_is_reported(optimizer: ReachableOptimizer, monitor: ScriptedMonitor) -> None:
    with pytest.raises(KeyError):
        async with make(optimizer, monitor) as bso:
            await bso.get_batch_size()
            await bso.on_train_begin()
            raise KeyError("label")

    assert (await optimizer.store.trials("job"))[0].outcome_reason == "KeyError: 'label'"


@pytest.mark.parametrize(("how", "outcome"), [("call_off", Outcome.CANCELLED), ("interrupt", Outcome.INTERRUPTED)])
async def test_a_trial_ends_by_hand(
    optimizer: ReachableOptimizer, monitor: ScriptedMonitor, how: str, outcome: Outcome
) -> None:
    async with make(optimizer, monitor) as bso:
        async for trial in bso.trials():
            async with trial:
                await trial.on_evaluate(0.1)
                await getattr(trial, how)("the disk is full")
                assert trial.finished

    [ended] = await optimizer.store.trials("job")
    assert (ended.outcome, ended.outcome_reason) == (outcome, "the disk is full")


async def test_a_saved_state_is_resumed(optimizer: ReachableOptimizer, monitor: ScriptedMonitor) -> None:
    async with make(optimizer, monitor) as first:
        await first.get_batch_size()
        await first.on_train_begin()
        await first.on_evaluate(0.1)
        state = first.state_dict()
    async with make(optimizer, monitor) as second:
        second.load_state_dict(state)
        async for trial in second.trials():
            assert trial.trial_number == 1
            async with trial:
                await trial.on_evaluate(0.95)

    assert [report.epoch for report in optimizer.commands(ReportEpoch)] == [1.0, 2.0]
    assert await outcomes(optimizer) == [Outcome.CONVERGED]


@pytest.mark.parametrize("is_over", [True, False])
async def test_a_loop_resumes_the_trial_of_a_checkpoint_unless_that_is_over(
    optimizer: ReachableOptimizer, monitor: ScriptedMonitor, is_over: bool
) -> None:
    state: dict[str, Any] = {}
    async with make(optimizer, monitor) as bso, aclosing(bso.trials()) as trials:
        with suppress(asyncio.CancelledError):
            async with await anext(trials) as trial:
                await trial.on_evaluate(0.1)
                state = trial.state_dict()
                if is_over:
                    await trial.on_evaluate(0.95)
                raise asyncio.CancelledError
    optimizer.is_closed = False
    seen = []
    async with make(optimizer, monitor) as bso:
        async for trial in bso.resumable_trials(state):
            seen.append((trial.is_resumed, trial.epoch))
            async with trial:
                await trial.on_evaluate(0.95)
    assert seen == [(False, 0.0) if is_over else (True, 1.0)]
    assert await outcomes(optimizer) == [Outcome.CONVERGED] * (2 if is_over else 1)
