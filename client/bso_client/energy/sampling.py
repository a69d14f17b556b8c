"""Starts the helper process that samples power, and asks it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from bso_client.child_process import command_for
from bso_client.energy.counters import Reading
from bso_client.energy.errors import MeterFailed
from bso_client.energy.sampler import LONGEST_GAP_S

INTERVAL_S = 0.05
"""GPUs without an energy counter bring their power up to date every 20 to 100 ms."""

START_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = LONGEST_GAP_S
"""A helper that has been stopped for longer does not know the energy any more."""


class PowerSampler:
    """A helper process that integrates the power [W] of GPUs to energy [J]. Once it has ended, it stays so.

    Raises MeterFailed where the helper cannot be started, or does not answer.
    """

    def __init__(self, uuids: Sequence[str], *, interval_s: float = INTERVAL_S) -> None:
        self._lock = threading.Lock()
        self._why_not = ""
        self._said = b""
        self._questions = 0
        command = command_for("bso_client.energy.sampler", str(os.getpid()), str(interval_s), *uuids)
        try:
            self._process = subprocess.Popen(  # noqa: S603  # our own module
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                process_group=0,  # Ctrl-C is for the training, which still wants to know what it has consumed
            )
        except (OSError, ValueError) as error:
            raise MeterFailed(f"the helper that samples the GPU's power cannot be started: {error}") from error
        answer = self._hear(START_TIMEOUT_S)
        if "error" in answer:
            self._fail(f"cannot begin: {answer['error']}")

    @property
    def pid(self) -> int:
        """The helper's process id."""
        return self._process.pid

    def read(self, at_s: float) -> list[Reading | MeterFailed]:
        """The energy of each GPU up to an instant [s] of time.monotonic() which is not in the future.

        In the order of the uuids; MeterFailed stands for a GPU whose energy is not known then. Raises MeterFailed where
        the helper does not answer.
        """
        with self._lock:
            if self._why_not:
                raise MeterFailed(self._why_not)
            answer = self._ask(at_s)
        return [_reading(each, at_s) for each in answer["gpus"]]

    def close(self) -> None:
        """End the helper."""
        with self._lock:
            self._end("the helper that samples the GPU's power was closed")

    def _ask(self, at_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._questions += 1
        try:
            self._process.stdin.write(f"{self._questions}:{at_s!r}\n".encode())
        except OSError:
            self._fail("is gone")
        while True:  # past the answers to questions that a KeyboardInterrupt has cut short
            answer = self._hear(ANSWER_TIMEOUT_S)
            if answer.get("question") == self._questions:
                return answer

    def _hear(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._said:
            self._said += self._next_part(timeout_s, deadline)
        line, _, self._said = self._said.partition(b"\n")
        return dict(json.loads(line))

    def _next_part(self, timeout_s: float, deadline: float) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:  # select() cannot, where a training has opened many files
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                self._fail(f"did not answer within {timeout_s:g} s")
        part = os.read(self._process.stdout.fileno(), 65536)
        if not part:
            self._fail("is gone")
        return part

    def _fail(self, how: str) -> NoReturn:
        raise MeterFailed(self._end(f"the helper that samples the GPU's power {how}"))

    def _end(self, why: str) -> str:
        if not self._why_not:
            self._why_not = why
            self._process.kill()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                with contextlib.suppress(OSError):
                    pipe.close()
            self._process.wait()
        return self._why_not


def _reading(answer: Mapping[str, Any], at_s: float) -> Reading | MeterFailed:
    if "error" in answer:
        return MeterFailed(str(answer["error"]))
    return Reading(energy_j=float(answer["energy_j"]), at_s=at_s, breaks=int(answer["breaks"]))
