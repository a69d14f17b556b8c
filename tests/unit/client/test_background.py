import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from bso.domain.trial import Outcome
from bso_client.background import LoopThread
from bso_client.lifecycle import Shell
from tests.servers import PATIENCE_S


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop(timeout_s=PATIENCE_S)


async def nothing() -> int:
    return 1


def test_a_signal_handler_may_use_the_loop_that_its_own_thread_is_starting(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: list[str] = []
    start = threading.Thread.start

    def start_and_interrupt(thread: threading.Thread) -> None:
        start(thread)
        if not handled:
            signal.raise_signal(signal.SIGUSR1)

    def handle(number: int, frame: object) -> None:
        handled.append("before")
        loop_thread.settle(loop_thread.start_soon(nothing()), timeout_s=PATIENCE_S)
        handled.append("after")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        monkeypatch.setattr(threading.Thread, "start", start_and_interrupt)
        assert loop_thread.run(nothing()) == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == ["before", "after"]


def test_a_loop_that_was_stopped_starts_anew(loop_thread: LoopThread) -> None:
    loop_thread.start()
    loop_thread.stop(timeout_s=PATIENCE_S)
    assert loop_thread.run(nothing()) == 1


def test_a_drivers_thread_may_report_to_a_loop_that_was_stopped_meanwhile(
    loop_thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[object] = []  # the exceptions of threads, which Python only prints
    monkeypatch.setattr(threading, "excepthook", complaints.append)
    is_stopped, is_waiting = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    async def query() -> None:
        future = asyncio.get_running_loop().create_future()

        def work() -> None:  # as drivers do that have a thread for each connection
            is_waiting.set()
            is_stopped.wait(PATIENCE_S)
            future.get_loop().call_soon_threadsafe(lambda: None)

        threads.append(threading.Thread(target=work))
        threads[0].start()
        await future

    loop_thread.start_soon(query())
    assert is_waiting.wait(PATIENCE_S)
    loop_thread.stop(timeout_s=PATIENCE_S)
    is_stopped.set()
    threads[0].join(PATIENCE_S)
    assert complaints == []


class _Waiting:
    """Closing waits for ever, and Ctrl-C comes meanwhile."""

    is_open = True
    has_kept = False

    async def close(self, *, timeout_s: float, reason: str, outcome: Outcome = Outcome.INTERRUPTED) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            self.has_kept = True


def test_ctrl_c_ends_the_wait_of_closing_and_is_not_lost(loop_thread: LoopThread) -> None:
    session = _Waiting()
    with pytest.raises(KeyboardInterrupt):
        Shell(session, loop_thread).close(timeout_s=10 * PATIENCE_S, reason="the end")
    assert session.has_kept
