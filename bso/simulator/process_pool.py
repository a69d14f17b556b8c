"""Calls spread over processes.

Unlike the pools of the standard library, this one can be given up at any moment: each process has a pipe of its own, so
that one which is ended in the middle of a result holds nobody up.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias, TypeVar

_Result = TypeVar("_Result")
_Answer: TypeAlias = "tuple[Any, Exception | None]"  # a result, or the error of the call
_Pipe: TypeAlias = "Connection[Callable[[], Any], _Answer]"


def spread(
    calls: Sequence[Callable[[], _Result]], *, processes: int, on_done: Callable[[_Result], None]
) -> list[_Result]:
    """The results of calls, in their order, whatever ``processes`` is; with more than one the calls are pickled.

    ``on_done`` receives each result as it comes. An error of a call is raised, and the other calls are given up. Raises
    ChildProcessError if a process ends before its call has.
    """
    if processes <= 1 or len(calls) <= 1:
        return [_reported(call(), on_done) for call in calls]
    results: dict[int, _Result] = {}
    with _processes(min(processes, len(calls))) as idle:
        waiting, working = list(enumerate(calls))[::-1], dict[Any, int]()
        while waiting or working:
            while waiting and idle:
                pipe = idle.pop()
                working[pipe], call = waiting.pop()
                pipe.send(call)
            for ready in wait(list(working)):
                assert isinstance(ready, Connection)
                results[working.pop(ready)] = _reported(_result(ready), on_done)
                idle.append(ready)
    return [results[number] for number in range(len(calls))]


@contextmanager
def _processes(count: int) -> Iterator[list[_Pipe]]:
    """Pipes to processes, which end with the block, whatever they are doing then."""
    context = multiprocessing.get_context("spawn")  # not forked: the caller may show its progress from a thread
    pipes, started = list[_Pipe](), list[BaseProcess]()
    try:
        with _uninterrupted():
            for _ in range(count):
                pipe, theirs = context.Pipe()
                pipes.append(pipe)
                started.append(context.Process(target=_work, args=(theirs,), daemon=True))
                started[-1].start()
                theirs.close()
        yield list(pipes)
    finally:
        for process, pipe in zip(started, pipes, strict=False):
            process.terminate()
            process.join()
            pipe.close()


def _work(pipe: Connection[_Answer, Callable[[], Any]]) -> None:
    """Make the calls that come, until the other end is closed."""
    while True:
        try:
            call = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            answer: _Answer = call(), None
        except Exception as error:  # noqa: BLE001  # the caller raises it
            error.add_note(f"In a process of the simulator:\n{traceback.format_exc()}")
            answer = None, error
        try:
            pipe.send(answer)
        except ConnectionError:  # who asked was ended
            return


def _result(pipe: _Pipe) -> Any:
    try:
        result, error = pipe.recv()
    except (EOFError, ConnectionError) as lost:
        raise ChildProcessError("a process of the simulation was ended from outside; was memory short?") from lost
    if error is not None:
        raise error
    return result


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes started here receive no SIGINT from Ctrl-C at the terminal: this process ends them."""
    resource_tracker.ensure_running()  # starts with the first process otherwise, and unblocks SIGINT then
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reported(result: _Result, on_done: Callable[[_Result], None]) -> _Result:
    on_done(result)
    return result
