"""Signals to a command that runs a program."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from bso_cli.programs import Program

# It ends with the number of the signal that comes first.
_WAITING = """
import signal, sys
numbers = [signal.SIGHUP, signal.SIGTERM]
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
sys.exit(signal.sigwait(numbers))
"""


@pytest.fixture
def _under_nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_under_nohup")
def test_a_signal_that_is_ignored_stays_so_and_others_are_passed_on() -> None:
    reading, writing = os.pipe()
    with Program([sys.executable, "-c", _WAITING], stdout=writing) as program:
        os.read(reading, 5)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        assert program.wait() == signal.SIGTERM
        assert program.received is signal.SIGTERM
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
