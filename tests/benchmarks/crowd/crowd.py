"""A crowd of trainings, seen from outside: a few processes that hold some hundreds each."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bso.domain.events import EpochReported
from bso.storage import open_store
from tests.benchmarks.crowd.members import Member
from tests.benchmarks.machine import cpu_of_tree_s, memory_of_tree
from tests.integration.workers.recurrences import audit, history

PROCESSES = 8
OPENING_S = 1800.0
"""The last resort against hanging: two thousand trainings begin within some minutes."""

_AUDITED_AT_ONCE = 8
_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What all trainings together know at a moment; times are the monotonic clock's [s]."""

    connected: int
    made_s: Sequence[float]
    """When connections were made, sorted, since the beginning."""

    failed_s: Sequence[float]
    """When attempts to connect failed."""

    members: Sequence[Member]

    @property
    def begun(self) -> int:
        """How many have begun."""
        return sum(member.trial_number > 0 for member in self.members)

    @property
    def renewals(self) -> int:
        """How often leases were renewed."""
        return sum(member.renewals for member in self.members)


class Crowd:
    """So many trainings, each of a job of its own, in at most eight processes; an entered one has begun them all."""

    def __init__(self, count: int, *, amqp_url: str, folder: Path) -> None:
        name = uuid.uuid4().hex[:8]
        self._amqp_url = amqp_url
        self._folder = folder / f"crowd-{name}"
        self._job_ids = [f"crowd-{name}-{number:05}" for number in range(count)]
        self._processes: list[subprocess.Popen[str]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for number in range(min(PROCESSES, len(self._job_ids))):
                process = self._start(number)
                stack.callback(_end, process)
                self._processes.append(process)
            self.until(lambda known: known.begun == self.size, timeout_s=OPENING_S)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def size(self) -> int:
        """How many trainings."""
        return len(self._job_ids)

    def until(self, condition: Callable[[Known], bool], *, timeout_s: float) -> Known:
        """Look, rarely enough not to disturb them, until a condition holds; AssertionError after the deadline."""
        deadline_s = time.monotonic() + timeout_s
        while not condition(known := self.known()):
            assert time.monotonic() < deadline_s, f"{known.connected} connected, {known.begun} begun, of {self.size}"
            time.sleep(_PAUSE_S)
        return known

    def known(self) -> Known:
        """What they know now."""
        return self._answered({})

    def report(self, *, within_s: float) -> Known:
        """Let each training report an epoch, at a moment of its own within so many seconds."""
        return self._answered({"report_within_s": within_s})

    def memory(self) -> int:
        """Resident memory of the processes [bytes]."""
        return sum(memory_of_tree(process.pid) for process in self._processes)

    def cpu_s(self) -> float:
        """CPU time of the processes so far."""
        return sum(cpu_of_tree_s(process.pid) for process in self._processes)

    async def audit(self, database_url: str) -> int:
        """Check that every training has its trial still, and each of its reports is recorded once; how many reports."""
        store = open_store(database_url)
        turn = asyncio.Semaphore(_AUDITED_AT_ONCE)

        async def one(member: Member) -> int:
            async with turn:
                assert await audit(store, member.job_id) == 1, member
                [trial] = await store.trials(member.job_id)
                assert trial.is_active, trial
                assert (trial.trial_number, trial.trial_id) == (member.trial_number, member.trial_id)
                events = [stored.recorded.event for stored in await history(store, member.job_id)]
                epochs = sorted(event.epoch for event in events if isinstance(event, EpochReported))
                assert epochs == list(range(1, member.reports + 1)), (member, epochs)
                return len(epochs)

        try:
            return sum(await asyncio.gather(*map(one, self.known().members)))
        finally:
            await store.close()

    def _share(self, number: int) -> list[str]:
        return self._job_ids[number :: min(PROCESSES, len(self._job_ids))]

    def _start(self, number: int) -> subprocess.Popen[str]:
        self._folder.mkdir(exist_ok=True)
        with (self._folder / f"members-{number}.log").open("wb") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.benchmarks.crowd.members"),
                    *(self._amqp_url, str(self._folder), *self._share(number)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _answered(self, question: dict[str, Any]) -> Known:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
        answers = [json.loads(_line(process)) for process in self._processes]
        return Known(
            connected=sum(answer["connected"] for answer in answers),
            made_s=sorted(time_s for answer in answers for time_s in answer["made_s"]),
            failed_s=sorted(time_s for answer in answers for time_s in answer["failed_s"]),
            members=[Member(**member) for answer in answers for member in answer["members"]],
        )


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"a process of the crowd ended with {process.wait()}"
    return line
