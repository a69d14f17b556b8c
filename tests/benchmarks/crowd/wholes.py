"""Whole trainings, each in a process of its own, seen from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from bso.domain.events import EpochReported
from bso.storage import open_store
from tests.integration.workers.recurrences import audit, history
from tests.servers import eventually

_STOPPING_S = 300.0


@dataclass(slots=True, kw_only=True)
class _Whole:
    job_id: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def evaluations(self) -> int:
        return self.log.read_text().splitlines().count("evaluated")


class Wholes:
    """So many of them, which recur until SIGUSR1; after ``with`` has begun, each has evaluated once."""

    def __init__(self, count: int, *, amqp_url: str, folder: Path, epoch_s: float) -> None:
        self._name = f"whole-{uuid.uuid4().hex[:8]}"
        self._count = count
        self._amqp_url = amqp_url
        self._folder = folder / self._name
        self._epoch_s = epoch_s
        self._wholes: list[_Whole] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._folder.mkdir()
        with ExitStack() as stack:
            for number in range(self._count):
                whole = self._start(number)
                stack.callback(_end, whole.process)
                self._wholes.append(whole)
            eventually(lambda: all(whole.evaluations for whole in self._wholes), timeout_s=_STOPPING_S)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def evaluations(self) -> int:
        """How often all of them have evaluated."""
        return sum(whole.evaluations for whole in self._wholes)

    def stop(self) -> None:
        """Let each end after the epoch under way, and deliver what they kept. AssertionError where that fails."""
        for whole in self._wholes:
            whole.process.send_signal(signal.SIGUSR1)
        for whole in self._wholes:
            assert whole.process.wait(_STOPPING_S) == 0, whole.log.read_text()[-2000:]
        flush = ("journal", "flush", "--json", "--url", self._amqp_url, "--state-dir", str(self._folder))
        done = subprocess.run([sys.executable, "-m", "bso_cli", *flush], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout} {done.stderr}"
        assert json.loads(done.stdout)["set_aside"] == 0, done.stdout

    async def audit(self, database_url: str) -> int:
        """Check, once they have stopped, that each evaluation is recorded once, and log and tables agree; how many."""
        store = open_store(database_url)
        try:
            for whole in self._wholes:
                await audit(store, whole.job_id)
                events = [stored.recorded.event for stored in await history(store, whole.job_id)]
                reports = [(event.trial_number, event.epoch) for event in events if isinstance(event, EpochReported)]
                found = f"{whole.evaluations} evaluations, recorded: {reports}; {whole.log.read_text()[-2000:]}"
                assert len(set(reports)) == len(reports) == whole.evaluations, found
        finally:
            await store.close()
        return self.evaluations

    def _start(self, number: int) -> _Whole:
        job_id = f"{self._name}-{number:03}"
        log = self._folder / f"{job_id}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.benchmarks.crowd.whole"),
                    *(self._amqp_url, str(self._folder), job_id, str(self._epoch_s)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        return _Whole(job_id=job_id, log=log, process=process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
