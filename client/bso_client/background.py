"""The thread that owns the event loop of a synchronous optimizer, and threads that nobody has to wait for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

logger = logging.getLogger("bso")


class LoopThread:
    """An event loop in a daemon thread, started at its first use. Signal handlers may use it at any time."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # a signal handler may come while its own thread holds it

    def start(self) -> None:
        """Start it now, if it does not run: before whatever may interrupt its start is installed."""
        self._running_loop()

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Run a coroutine there and wait for its result; an interruption of the wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._running_loop())
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def settle(self, future: concurrent.futures.Future[Any], *, timeout_s: float) -> None:
        """Wait for what runs there to end, or for ``timeout_s``, whatever signal handlers raise here meanwhile."""
        deadline = time.monotonic() + timeout_s
        while not future.done() and (left_s := deadline - time.monotonic()) > 0:
            try:
                concurrent.futures.wait([future], timeout=left_s)
            except Exception:  # a DataLoader raises in its SIGCHLD handler when its workers are ended
                logger.debug("interrupted while closing", exc_info=True, extra={"action": "close_interrupted"})
        if not future.done():
            future.cancel()
            raise TimeoutError
        future.result()

    def start_soon(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine there and do not wait."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._running_loop())

    def cancel(self, future: concurrent.futures.Future[Any], *, timeout_s: float) -> None:
        """Cancel what runs there, and wait until nothing does any more, or for ``timeout_s``."""
        future.cancel()
        over = self.start_soon(_others_end())
        with contextlib.suppress(TimeoutError, KeyboardInterrupt):
            over.result(timeout_s)

    def stop(self, *, timeout_s: float) -> None:
        """End loop and thread, if they were ever started. A later use starts new ones."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(timeout_s)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                if sys.is_finalizing():  # a thread would never run, and its start wait for it
                    raise RuntimeError("the interpreter is being closed")
                loop = _Loop()
                thread = threading.Thread(target=_serve, args=(loop,), name="bso", daemon=True)
                thread.start()
                self._loop, self._thread = loop, thread
            return self._loop


async def _others_end() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)


def in_thread(function: Callable[[], T], *, name: str) -> concurrent.futures.Future[T]:
    """Run it in a thread of its own, which the end of the process does not wait for."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001  # the caller that waits for the future gets it
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class _Loop(asyncio.SelectorEventLoop):
    """A loop to which threads of drivers may still report when it is closed: aiosqlite's would print a traceback."""

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self.is_closed():
            return asyncio.Handle(callback, args, self, context)  # which nobody runs
        return super().call_soon_threadsafe(callback, *args, context=context)


class _Forsaken(concurrent.futures.ThreadPoolExecutor):
    """Threads that the end of the process does not wait for: looking up a host that nobody knows takes long."""

    def submit(self, function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> concurrent.futures.Future[T]:
        """Run it in a thread of its own."""
        return in_thread(functools.partial(function, *args, **named), name="bso lookup")


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.set_default_executor(_Forsaken())
    try:
        loop.run_forever()
    finally:
        _cancel_all(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
