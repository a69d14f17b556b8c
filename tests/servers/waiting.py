"""Waiting for a condition, with a deadline: what tests do instead of sleeping."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")

PATIENCE_S = 120.0
"""The last resort against hanging [s]: far more than anything takes on a machine that others keep busy."""
PAUSE_S = 0.02  # between two looks


def eventually(condition: Callable[[], T], *, timeout_s: float = PATIENCE_S, what: str = "") -> T:
    """Look until the condition holds and return what it gave; AssertionError after the deadline."""
    deadline = time.monotonic() + timeout_s
    while not (seen := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or condition} did not come true within {timeout_s} s; last seen: {seen!r}")
        time.sleep(PAUSE_S)
    return seen


@overload
async def eventually_async(
    condition: Callable[[], Awaitable[T]], *, timeout_s: float = PATIENCE_S, what: str = ""
) -> T: ...


@overload
async def eventually_async(condition: Callable[[], T], *, timeout_s: float = PATIENCE_S, what: str = "") -> T: ...


async def eventually_async(
    condition: Callable[[], T] | Callable[[], Awaitable[T]], *, timeout_s: float = PATIENCE_S, what: str = ""
) -> T:
    """As `eventually`, leaving the event loop free in between; the condition may be a coroutine function.

    A look that hangs fails too: each has what is left of the time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    seen: T | None = None
    try:
        async with asyncio.timeout_at(deadline):
            while True:
                looked = condition()
                seen = await looked if inspect.isawaitable(looked) else looked
                if seen:
                    return seen
                await asyncio.sleep(PAUSE_S)
    except TimeoutError as error:
        message = f"{what or condition} did not come true within {timeout_s} s; last seen: {seen!r}"
        raise AssertionError(message) from error
