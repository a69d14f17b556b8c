"""The signals that ask a driver to stop."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from bso.cli.recurring.launching import signals
from tests.servers import PATIENCE_S


@pytest.fixture
def _under_nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_under_nohup")
async def test_a_signal_that_is_ignored_stays_so_and_others_arrive() -> None:
    with signals() as arrived:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(arrived.get(), PATIENCE_S) is signal.SIGTERM
        assert arrived.empty()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
