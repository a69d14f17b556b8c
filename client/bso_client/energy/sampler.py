"""The helper process that samples the power of GPUs without an energy counter, so that training never delays a sample.

Its arguments are PARENT_PID INTERVAL_S UUID... It says on a line of its own that it is ready; then each line with the
number of a question and an instant of time.monotonic(), which all processes of a machine share ("7:12.5"), is answered
by one with that number and the energy of each GPU from the beginning to that instant. However late the helper runs, the
answer is the same: it takes one more sample, and interpolates. It ends when its input does, or with its parent. Signals
of the terminal are not meant for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

from bso_client.energy.counters import PowerIntegral
from bso_client.energy.errors import MeterFailed
from bso_client.energy.nvml import Gpu, Nvml

LONGEST_GAP_S = 5.0
"""After longer without a sample the energy is not known: the helper was stopped, or starved."""

KEPT_S = 30.0
"""Questions come that late at most, unless the training itself was stopped while it asked."""


class SampledGpu:
    """A GPU and what its samples add up to."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._integral = PowerIntegral(longest_gap_s=LONGEST_GAP_S, kept_s=KEPT_S)

    def sample(self) -> None:
        """One more sample. Raises MeterFailed."""
        began_s = time.monotonic()
        try:
            power_w = self._gpu.power_w()
        except MeterFailed:
            self._integral.interrupt()
            raise
        self._integral.add((began_s + time.monotonic()) / 2, power_w)

    def answer(self, at_s: float) -> dict[str, object]:
        """The energy up to an instant [s] as a message; one more sample is taken where none is as late."""
        try:
            if not self._integral.reaches(at_s):
                self.sample()
            reading = self._integral.at(at_s)
        except MeterFailed as error:
            return {"error": str(error)}
        return {"energy_j": reading.energy_j, "breaks": reading.breaks}


def serve(gpus: Sequence[SampledGpu], *, parent: int, interval_s: float) -> None:
    """Sample, and answer, until the process that asks has ended."""
    due = time.monotonic()
    while os.getppid() == parent:
        wait_s = max(0.0, due - time.monotonic())
        readable, _, _ = select.select([sys.stdin], [], [], wait_s)
        if readable:
            asked = os.read(sys.stdin.fileno(), 4096)
            if not asked:
                return
            for question in asked.decode("ascii").split():
                number, _, at_s = question.partition(":")
                say({"question": int(number), "gpus": [gpu.answer(float(at_s)) for gpu in gpus]})
        if time.monotonic() >= due:
            for gpu in gpus:
                with contextlib.suppress(MeterFailed):  # the next answer says so
                    gpu.sample()
            due = time.monotonic() + interval_s


def say(message: dict[str, object]) -> None:
    """Send one line to the parent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Find the GPUs and serve."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent, interval_s, uuids = int(arguments[0]), float(arguments[1]), arguments[2:]
    try:
        by_uuid = {gpu.uuid: gpu for gpu in Nvml().gpus()}
        gpus = [SampledGpu(by_uuid[uuid]) for uuid in uuids]
        for gpu in gpus:
            gpu.sample()
    except (MeterFailed, KeyError) as error:
        say({"error": str(error)})
        return 1
    say({"is_ready": True})
    serve(gpus, parent=parent, interval_s=interval_s)
    return 0
