import signal
import threading
from collections.abc import Iterator

import pytest

from bso_client.background import LoopThread
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
        loop_thread.settle(nothing(), timeout_s=PATIENCE_S)
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
