"""A signal reaches a command once, whether it comes to its driver alone or to everybody in the group."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.conftest import BSO, Command
from tests.servers import PATIENCE_S, eventually

# It waits until it is asked for, and then whether it is asked for again.
_COUNTING = """
import signal, sys
number = int(sys.argv[1])
signal.pthread_sigmask(signal.SIG_BLOCK, [number])
open(sys.argv[2], "w").close()
signal.sigwait([number])
again = signal.sigtimedwait([number], 0.4)
open(sys.argv[3], "w").write("once" if again is None else "twice")
"""


@pytest.mark.parametrize("driver", [("recur", 1), ("monitor",)], ids=["recur", "monitor"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["alone", "group"])
def test_a_signal_to_the_driver_or_to_its_group_reaches_the_command_once(
    bso: Command, tmp_path: Path, driver: tuple[object, ...], number: signal.Signals, send: object
) -> None:
    reached, received = tmp_path / "reached", tmp_path / "received"
    command = [BSO, *driver, "--", sys.executable, "-c", _COUNTING, int(number), reached, received]
    process = subprocess.Popen(list(map(str, command)), env=bso.environment, start_new_session=True)
    bso.started.append(process)
    eventually(reached.exists)
    assert callable(send)
    send(process.pid, number)
    process.wait(PATIENCE_S)
    assert received.read_text() == "once"
