"""The life of the process: loops that run together, a signal that drains them, a crash that ends them all."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import IntEnum
from types import TracebackType
from typing import Self

import structlog
from structlog.typing import FilteringBoundLogger

_log: FilteringBoundLogger = structlog.get_logger(__name__)

Loop = Callable[[], Awaitable[None]]

_COLLECTED_AFTER = (20_000, 10, 10)
"""So many new objects, collections of new ones, and of those that survived one. CPython's first number is 700, or 2 000
in later releases."""


class ExitCode(IntEnum):
    """How a worker ended."""

    DRAINED = 0  # it was asked to stop, and everything taken is answered or back with the broker
    CRASHED = 1  # a loop failed in an unforeseen way: start it again
    MISCONFIGURED = 2  # it cannot start like this: somebody has to change a setting


class StopSignal:
    """Turns the first SIGTERM or SIGINT into an event; a second one ends the process at once."""

    def __init__(self) -> None:
        self._arrived = asyncio.Event()
        self._name = ""

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._arrive, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave_to_the_system()

    async def wait(self) -> str:
        """Wait for a signal and return its name."""
        await self._arrived.wait()
        return self._name

    def _arrive(self, number: signal.Signals) -> None:
        self._name = number.name
        self._arrived.set()
        self._leave_to_the_system()

    def _leave_to_the_system(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)


Tasks = Mapping[str, asyncio.Task[None]]


async def run_together(
    loops: Mapping[str, Loop],
    *,
    until: Callable[[], Awaitable[str]],
    drain: Callable[[Tasks], Awaitable[None]],
    cancel_again_s: float = 2.0,
) -> ExitCode:
    """Run the loops until a signal to stop, then drain and end them. A loop that fails or ends by itself ends all.

    One that goes on although it was cancelled is cancelled again, every ``cancel_again_s``.
    """
    is_draining = asyncio.Event()
    exit_code = ExitCode.DRAINED
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {
                name: group.create_task(_while_not(is_draining, name, loop), name=name) for name, loop in loops.items()
            }
            reason = await until()
            is_draining.set()
            _log.info("draining", action="draining", signal=reason)
            await drain(tasks)
            await _ended(tasks.values(), cancel_again_s)
    except* Exception as crash:  # noqa: BLE001  logged, and the process ends
        for error in crash.exceptions:
            _log.error("a part of the worker crashed: it must be started again", action="crashed", exc_info=error)
        exit_code = ExitCode.CRASHED
    return exit_code


async def _ended(tasks: Iterable[asyncio.Task[None]], cancel_again_s: float) -> None:
    """Cancel tasks until they end: a library may take one cancellation for the end of a connection."""
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=cancel_again_s)


async def _while_not(is_draining: asyncio.Event, name: str, loop: Loop) -> None:
    await loop()
    if not is_draining.is_set():
        raise RuntimeError(f"the loop {name!r} ended by itself")


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop of uvloop where it is installed: messaging then costs about a tenth less."""
    if sys.platform == "win32":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def collect_garbage_seldom() -> None:
    """Let the cyclic garbage collector pass over what there is now, and look at the rest less often.

    A worker's hundreds of thousands of objects are modules, statements and models; what a command needs is freed by its
    reference counts.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTED_AFTER)
