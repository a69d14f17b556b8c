"""Load: trainings that report epoch after epoch and never come to an end."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Protocol

from bso.domain.commands import BeginTrial, Command, RegisterJob, ReportEpoch, Request
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.replies import EpochJudged, Registered, Reply, TrialBegun

HARDWARE = HardwareKind(gpu_model="A40", max_power_w=300.0, energy_method=EnergyMethod.NVML_COUNTER)
SPEC = {
    "batch_sizes": [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
    "default_batch_size": 64,
    "target_metric": 0.9,
    "max_epochs": 10**9,
}

Ask = Callable[[Request], Awaitable[Reply]]


@dataclass(slots=True, kw_only=True)
class Lane:
    """One running trial."""

    job_id: str
    begun: TrialBegun
    epoch: int = 0

    def report(self) -> Request:
        """The next epoch's report."""
        self.epoch += 1
        return request(
            self.job_id,
            ReportEpoch(
                trial_number=self.begun.trial_number,
                trial_id=self.begun.trial_id,
                epoch=float(self.epoch),
                time_s=self.epoch * 60.0,
                energy_j=self.epoch * 15_000.0,
                metric=0.5,
            ),
        )


class Reporter(Protocol):
    """Has reports to send, one after the other."""

    def report(self) -> Request:
        """The next one."""
        ...


class Turns:
    """Running trials that take turns."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = cycle(lanes)

    def report(self) -> Request:
        """The next one's next report."""
        return next(self._lanes).report()


async def open_lanes(ask: Ask, count: int, *, jobs: int, at_once: int = 1, **changes: Any) -> list[Lane]:
    """Begin so many trials, spread over so many new jobs; ``at_once`` is how many commands are under way meanwhile.

    ``changes`` are of the specification.
    """
    free = asyncio.Semaphore(at_once)

    async def register(name: str) -> None:
        async with free:
            registered = await ask(request(name, RegisterJob(spec={**SPEC, **changes})))
            assert isinstance(registered, Registered), registered

    async def begin(number: int) -> Lane:
        async with free:
            job_id = names[number % jobs]
            begun = await ask(request(job_id, BeginTrial(hardware=HARDWARE, recurrence_id=f"occasion-{number}")))
            assert isinstance(begun, TrialBegun), begun
            return Lane(job_id=job_id, begun=begun)

    names = [f"bench-{uuid.uuid4().hex[:12]}" for _ in range(jobs)]
    await asyncio.gather(*map(register, names))
    return await asyncio.gather(*map(begin, range(count)))


def batches(lanes: Sequence[Lane], *, size: int, count: int) -> list[list[Request]]:
    """Batches of reports, the lanes taking turns."""
    return [[lanes[(batch * size + one) % len(lanes)].report() for one in range(size)] for batch in range(count)]


def check_judged(replies: Sequence[Reply]) -> None:
    """Every report was judged, and its training goes on."""
    wrong = [reply for reply in replies if not isinstance(reply, EpochJudged) or reply.should_stop]
    assert not wrong, wrong[0]


def request(job_id: str, command: Command) -> Request:
    """A command under a new command_id."""
    return Request(command_id=str(uuid.uuid4()), job_id=job_id, command=command)
