"""Load: trainings that report epoch after epoch and never come to an end."""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

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


async def open_lanes(ask: Ask, count: int, *, jobs: int) -> list[Lane]:
    """Begin so many trials, spread over so many new jobs."""
    names = [f"bench-{uuid.uuid4().hex[:12]}" for _ in range(jobs)]
    for name in names:
        registered = await ask(request(name, RegisterJob(spec=SPEC)))
        assert isinstance(registered, Registered), registered
    return [await _open_lane(ask, names[number % jobs], f"occasion-{number}") for number in range(count)]


async def _open_lane(ask: Ask, job_id: str, recurrence_id: str) -> Lane:
    begun = await ask(request(job_id, BeginTrial(hardware=HARDWARE, recurrence_id=recurrence_id)))
    assert isinstance(begun, TrialBegun), begun
    return Lane(job_id=job_id, begun=begun)


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
