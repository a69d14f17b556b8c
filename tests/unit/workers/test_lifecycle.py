"""Loops that run together end together, also one that takes being cancelled for something else."""

import asyncio

from bso_workers.lifecycle import ExitCode, Tasks, run_together


async def test_a_loop_that_swallows_a_cancellation_is_cancelled_again() -> None:
    swallowed: list[bool] = []
    running = asyncio.Event()

    async def deaf() -> None:
        running.set()
        while not swallowed:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.append(True)
        await asyncio.Event().wait()

    async def until() -> str:
        await running.wait()
        return "told to stop"

    async def drain(_: Tasks) -> None:
        """Nothing is under way."""

    ended = await run_together({"deaf": deaf}, until=until, drain=drain, cancel_again_s=0.01)
    assert ended is ExitCode.DRAINED
    assert swallowed == [True]
