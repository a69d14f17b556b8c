"""Calls spread over processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

_Result = TypeVar("_Result")


def spread(
    calls: Sequence[Callable[[], _Result]], *, processes: int, on_done: Callable[[_Result], None]
) -> list[_Result]:
    """The results of calls, in their order, whatever ``processes`` is; with more than one the calls are pickled.

    ``on_done`` receives each result as it comes. An error of a call is raised, and the other calls are given up.
    """
    if processes <= 1 or len(calls) <= 1:
        return [_reported(call(), on_done) for call in calls]
    # Not forked: the caller may show its progress from a thread.
    context, others = multiprocessing.get_context("spawn"), multiprocessing.active_children()
    with ProcessPoolExecutor(min(processes, len(calls)), mp_context=context) as pool:
        try:
            with _uninterrupted():
                futures = [pool.submit(call) for call in calls]
            for future in as_completed(futures):
                on_done(future.result())
        except BaseException:
            for process in multiprocessing.active_children():
                if process not in others:
                    process.terminate()
            # One that ends while it hands over a result leaves half of it: as long as anybody could still write the
            # other half, and this process could, the pool would wait for it.
            pool._result_queue._writer.close()  # type: ignore[attr-defined]  # noqa: SLF001  the pool offers no way to close it
            pool.shutdown(cancel_futures=True)  # waits: CPython, when it exits, must not meet a pool that just ends
            raise
        return [future.result() for future in futures]


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes started here receive no SIGINT from Ctrl-C at the terminal: this process ends them.

    If they ended by themselves, the pool would break while it is still being given work, and say so.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reported(result: _Result, on_done: Callable[[_Result], None]) -> _Result:
    on_done(result)
    return result
